import assert from 'node:assert/strict'
import http from 'node:http'
import test from 'node:test'
import { CommandExitError, InvalidArgumentError, NotFoundError, TimeoutError } from 'e2b'
import { eventually, withSandbox } from './sandbox.mjs'

const it = withSandbox()

test('output, code and environment', async () => {
  const result = await it.sandbox.commands.run('echo "$X"; echo err >&2; pwd', { envs: { X: 'a b' }, cwd: '/usr' })
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['a b\n/usr\n', 'err\n', 0])
  await assert.rejects(it.sandbox.commands.run('exit 5'), (error) => {
    assert(error instanceof CommandExitError)
    assert.equal(error.exitCode, 5)
    return true
  })
  assert.equal((await it.sandbox.commands.run('id -un', { user: 'root' })).stdout, 'root\n')
  await assert.rejects(it.sandbox.commands.run('true', { cwd: '/no/such' }), InvalidArgumentError)
})

test('input, and a client that leaves and comes back', async () => {
  const command = await it.sandbox.commands.run('cat', { background: true, stdin: true })
  await command.disconnect()
  const again = await it.sandbox.commands.connect(command.pid)
  await it.sandbox.commands.sendStdin(command.pid, 'text')
  await it.sandbox.commands.closeStdin(command.pid)
  assert.equal((await again.wait()).stdout, 'text')
  await assert.rejects(it.sandbox.commands.connect(4_000_000), NotFoundError)
})

test('lists and kills', async () => {
  const command = await it.sandbox.commands.run('sleep 800', { background: true })
  const known = async () => (await it.sandbox.commands.list()).some((process) => process.pid === command.pid)
  assert(await known())
  assert.equal(await it.sandbox.commands.kill(command.pid), true)
  await assert.rejects(command.wait(), CommandExitError)
  assert(!(await known()))
  assert.equal(await it.sandbox.commands.kill(command.pid), false)
})

test('a line of a mebibyte', async () => {
  const text = 'x'.repeat(1_000_000)
  const result = await it.sandbox.commands.run(`v=${text}; echo \${#v}`)
  assert.equal(result.stdout, '1000000\n')
})

test('the host of a port leads to this server', async () => {
  const { sandbox } = it
  await sandbox.commands.run('cd /tmp && echo inside > page && exec python3 -m http.server 3000', { background: true })
  const host = sandbox.getHost(3000)
  const port = new URL(process.env.E2B_API_URL).port
  assert.equal(host, `3000-${sandbox.sandboxId}.localhost:${port}`)
  // As a browser does: a name below localhost is this machine.
  const lookup = (name, options, done) => done(null, options.all ? [{ address: '127.0.0.1', family: 4 }] : '127.0.0.1', 4)
  const headers = { 'X-Access-Token': sandbox.envdAccessToken ?? sandbox.trafficAccessToken }
  const page = () =>
    new Promise((resolve, reject) => {
      const request = http.get(`http://${host}/page`, { headers, lookup }, (answer) => {
        let body = ''
        answer.on('data', (piece) => (body += piece)).on('end', () => resolve([answer.statusCode, body]))
      })
      request.on('error', reject)
    })
  await eventually(async () => (await page())[0] === 200)
  assert.deepEqual(await page(), [200, 'inside\n'])
})

test('a command that takes too long', async () => {
  await assert.rejects(it.sandbox.commands.run('sleep 801', { timeoutMs: 300 }), TimeoutError)
  await eventually(async () => !(await it.sandbox.commands.run("pgrep -f 'sleep 80[1]' || true")).stdout)
})

test('much output in order', async () => {
  let seen = ''
  const { stdout } = await it.sandbox.commands.run('seq 1 50000', { onStdout: (data) => (seen += data) })
  const right = Array.from({ length: 50000 }, (_, index) => `${index + 1}\n`).join('')
  assert(stdout === right && seen === right)
})

test('a terminal', async () => {
  const decoder = new TextDecoder()
  let seen = ''
  const terminal = await it.sandbox.pty.create({
    cols: 80,
    rows: 24,
    envs: { ABC: '12' },
    onData: (data) => (seen += decoder.decode(data)),
  })
  await it.sandbox.pty.resize(terminal.pid, { cols: 111, rows: 22 })
  await it.sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('echo $ABC-$((1+1)); stty size; exit\n'))
  assert.equal((await terminal.wait()).exitCode, 0)
  assert.match(seen, /12-2/)
  assert.match(seen, /22 111/)
})

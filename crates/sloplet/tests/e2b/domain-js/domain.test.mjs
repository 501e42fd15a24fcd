// The JavaScript package with E2B_DOMAIN alone, as against E2B's own servers.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'

let sandbox

before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 300_000 })
})

after(async () => {
  await sandbox.kill()
})

async function eventually(condition, milliseconds = 20_000) {
  const end = Date.now() + milliseconds
  for (;;) {
    const found = await condition()
    if (found) return found
    if (Date.now() > end) throw new Error('it did not happen')
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

test('only the domain is named', () => {
  assert.equal(process.env.E2B_API_URL, undefined)
  assert.equal(sandbox.getHost(3000), `3000-${sandbox.sandboxId}.${process.env.E2B_DOMAIN}`)
})

test('commands, and a second client', async () => {
  assert.equal((await sandbox.commands.run('echo $A', { envs: { A: 'b' } })).stdout, 'b\n')
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.commands.run('id -un')).stdout, 'user\n')
})

test('files up and down', async () => {
  const content = new Uint8Array(3_000_000).map((_, index) => index % 251)
  await sandbox.files.write('/home/user/f', content.buffer)
  assert.deepEqual(await sandbox.files.read('/home/user/f', { format: 'bytes' }), content)
  const address = await sandbox.downloadUrl('/home/user/f', { useSignatureExpiration: 60 })
  assert.equal((await (await fetch(address)).arrayBuffer()).byteLength, content.length)
})

test('watch', async () => {
  await sandbox.files.makeDir('/home/user/watched')
  const seen = []
  const watch = await sandbox.files.watchDir('/home/user/watched', (event) => seen.push(event.name))
  await sandbox.files.write('/home/user/watched/new', 'x')
  await eventually(() => seen.includes('new'))
  await watch.stop()
})

test('pty', async () => {
  let said = ''
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => (said += new TextDecoder().decode(data)) })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('echo $((40 + 2)); exit\n'))
  await terminal.wait()
  assert.match(said, /42/)
})

test('a preview opens without a token', async () => {
  await sandbox.commands.run('echo shown > page; python3 -m http.server 3000', { background: true, cwd: '/home/user' })
  const address = `https://${sandbox.getHost(3000)}/page`
  const text = await eventually(async () => {
    const answer = await fetch(address)
    return answer.ok && (await answer.text())
  })
  assert.equal(text, 'shown\n')
})

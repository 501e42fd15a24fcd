// The code interpreter with E2B's own JavaScript package. E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL name the server.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Sandbox } from '@e2b/code-interpreter'

let sandbox

before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 600_000 })
})

after(async () => {
  await sandbox.kill()
})

test('state is kept between calls', async () => {
  await sandbox.runCode('x = 20')
  const execution = await sandbox.runCode('x += 1; x')
  assert.equal(execution.text, '21')
})

test('output is streamed', async () => {
  const lines = []
  await sandbox.runCode("print('out')", { onStdout: (message) => lines.push(message.line) })
  assert.equal(lines.join(''), 'out\n')
})

test('an error has its traceback', async () => {
  const { error } = await sandbox.runCode('1 / 0')
  assert.equal(error.name, 'ZeroDivisionError')
  assert.match(error.traceback, /ZeroDivisionError/)
})

test('a figure is a picture and a chart', async () => {
  const code = "import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [1, 2])\nplt.show()"
  const { results } = await sandbox.runCode(code)
  assert.ok(results[0].png)
  assert.equal(results[0].chart.type, 'bar')
})

test('contexts are apart', async () => {
  const context = await sandbox.createCodeContext({ cwd: '/tmp' })
  await sandbox.runCode('y = 1', { context })
  assert.equal((await sandbox.runCode('y', { context })).text, '1')
  assert.equal((await sandbox.runCode('y')).error.name, 'NameError')
  await sandbox.removeCodeContext(context)
})

test('bash is a language', async () => {
  const execution = await sandbox.runCode('echo bash', { language: 'bash' })
  assert.equal(execution.logs.stdout.join(''), 'bash\n')
})

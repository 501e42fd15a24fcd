// A sandbox for the tests of one file. E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL name the server.
import { after, before } from 'node:test'
import { Sandbox } from 'e2b'

export function withSandbox() {
  const holder = {}
  before(async () => {
    holder.sandbox = await Sandbox.create({ timeoutMs: 300_000 })
  })
  after(async () => {
    await holder.sandbox.kill()
  })
  return holder
}

export async function eventually(condition, milliseconds = 10_000) {
  const end = Date.now() + milliseconds
  while (!(await condition())) {
    if (Date.now() > end) throw new Error('it did not happen')
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

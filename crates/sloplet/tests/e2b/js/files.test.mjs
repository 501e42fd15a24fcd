import assert from 'node:assert/strict'
import test from 'node:test'
import { FileNotFoundError, FilesystemEventType, FileType, InvalidArgumentError } from 'e2b'
import { eventually, withSandbox } from './sandbox.mjs'

const it = withSandbox()

test('writes and reads in every form', async () => {
  const { files } = it.sandbox
  const bytes = new Uint8Array(2_000_000).map((_, index) => index * 7)
  const info = await files.write('new/a', 'täxt')
  assert.deepEqual([info.name, info.path], ['a', '/home/user/new/a'])
  assert.equal(await files.read('new/a'), 'täxt')
  await files.write('bytes', bytes.buffer)
  assert.deepEqual(await files.read('bytes', { format: 'bytes' }), bytes)
  await files.write('blob', new Blob([bytes]))
  assert.equal((await files.read('blob', { format: 'blob' })).size, bytes.length)
  await files.write('stream', new Blob([bytes]).stream(), { useOctetStream: true })
  let size = 0
  for await (const piece of await files.read('stream', { format: 'stream' })) size += piece.length
  assert.equal(size, bytes.length)
  await files.write('packed', 'x'.repeat(100_000), { gzip: true })
  assert.equal((await files.read('packed', { gzip: true })).length, 100_000)
  await assert.rejects(files.read('nothing'), FileNotFoundError)
  await assert.rejects(files.read('new'), InvalidArgumentError)
})

test('several at once, with metadata', async () => {
  const { files } = it.sandbox
  const entries = ['m/1', 'm/2'].map((path) => ({ path, data: path }))
  const written = await files.write(entries, { metadata: { author: 'me' } })
  assert.deepEqual(written.map((info) => info.path), ['/home/user/m/1', '/home/user/m/2'])
  const info = await files.getInfo('m/2')
  assert.deepEqual(info.metadata, { author: 'me' })
  assert.deepEqual([info.size, info.mode, info.permissions, info.owner], [3, 0o644, '-rw-r--r--', 'user'])
})

test('folders, listings, moves', async () => {
  const { files } = it.sandbox
  assert.equal(await files.makeDir('d/e'), true)
  assert.equal(await files.makeDir('d/e'), false)
  await files.write('d/f', '')
  const listed = await files.list('d')
  assert.deepEqual(listed.map(({ name, type }) => [name, type]), [['e', FileType.DIR], ['f', FileType.FILE]])
  assert.equal((await files.rename('d/f', 'g/h')).path, '/home/user/g/h')
  assert.equal(await files.exists('d/f'), false)
  await files.remove('d')
  assert.equal(await files.exists('d'), false)
  await assert.rejects(files.list('d'), FileNotFoundError)
})

test('changes are streamed', async () => {
  const { files } = it.sandbox
  await files.makeDir('w')
  const seen = []
  const handle = await files.watchDir('w', (event) => void seen.push([event.type, event.name]), { recursive: true })
  await files.write('w/a', 'x')
  await files.write('w/sub/b', 'x')
  const saw = (type, name) => seen.some((event) => event[0] === type && event[1] === name)
  await eventually(() => saw(FilesystemEventType.WRITE, 'a') && saw(FilesystemEventType.CREATE, 'sub/b'))
  await handle.stop()
})

test('signed addresses', async () => {
  const { sandbox } = it
  await sandbox.files.write('signed', 'content')
  const url = await sandbox.downloadUrl('signed', { user: 'user', useSignatureExpiration: 60 })
  assert.equal(await (await fetch(url)).text(), 'content')
  assert.equal((await fetch(url.replace('signed', 'other'))).ok, false)
  const form = new FormData()
  form.append('file', new Blob(['up']), 'ignored')
  const upload = await sandbox.uploadUrl('uploaded', { user: 'user' })
  assert.equal((await fetch(upload, { method: 'POST', body: form })).status, 200)
  assert.equal(await sandbox.files.read('uploaded'), 'up')
})

// Sandboxes, listings, snapshots, templates, volumes and secrets, by way of the JavaScript package.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'

import { NotFoundError, Sandbox, Secret, Template, Volume } from 'e2b'

const unique = (kind) => `${kind}-${randomUUID().slice(0, 8)}`

async function withSandbox(options, use) {
  const sandbox = await Sandbox.create({ timeoutMs: 120_000, ...options })
  try {
    await use(sandbox)
  } finally {
    await sandbox.kill()
  }
}

async function all(paginator) {
  const found = []
  while (paginator.hasNext) found.push(...(await paginator.nextItems()))
  return found
}

test('a sandbox tells what it is and ends when it is told to', async () => {
  const metadata = { team: 'a', 'ümläut %': 'x=y&z +' }
  const network = { denyOut: ['8.8.8.8'] }
  const sandbox = await Sandbox.create({ timeoutMs: 100_000, metadata, network, envs: { GREETING: 'hello' } })
  const info = await sandbox.getInfo()
  assert.equal(info.sandboxId, sandbox.sandboxId)
  assert.deepEqual(info.metadata, metadata)
  assert.deepEqual(info.network.denyOut, network.denyOut)
  assert.equal(info.state, 'running')
  assert.ok(info.endAt > info.startedAt)
  assert.equal((await sandbox.commands.run('echo $GREETING')).stdout, 'hello\n')
  assert.equal(await sandbox.kill(), true)
  assert.equal(await sandbox.kill(), false)
  await assert.rejects(sandbox.getInfo(), NotFoundError)
})

test('pausing, resuming and forking', async () => {
  await withSandbox({}, async (sandbox) => {
    await sandbox.files.write('/home/user/state', 'before')
    assert.equal(await sandbox.pause(), true)
    assert.equal(await sandbox.pause(), false)
    assert.equal((await sandbox.getInfo()).state, 'paused')
    await sandbox.connect()
    assert.equal(await sandbox.isRunning(), true)
    const forks = await sandbox.fork({ count: 2, timeoutMs: 60_000 })
    try {
      assert.equal(new Set(forks.map((fork) => fork.sandboxId)).size, 2)
      await forks[0].files.write('/home/user/state', 'changed')
      assert.equal(await forks[1].files.read('/home/user/state'), 'before')
    } finally {
      await Promise.all(forks.map((fork) => fork.kill()))
    }
    await sandbox.setTimeout(0)
    for (let tries = 0; tries < 100 && (await sandbox.isRunning()); tries++) {
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
    assert.equal(await sandbox.isRunning(), false)
  })
})

test('listings have filters, an order and pages', async () => {
  const mark = { 'a key/with=&%+': randomUUID() }
  await withSandbox({ metadata: mark }, async (first) => {
    await withSandbox({ metadata: mark }, async (second) => {
      await first.pause()
      const listed = async (query, options) =>
        (await all(Sandbox.list({ query: { metadata: mark, ...query }, ...options }))).map((one) => one.sandboxId)
      assert.deepEqual(await listed({}), [second.sandboxId, first.sandboxId])
      assert.deepEqual(await listed({}, { limit: 1 }), [second.sandboxId, first.sandboxId])
      assert.deepEqual(await listed({}, { limit: 1, order: 'asc' }), [first.sandboxId, second.sandboxId])
      assert.deepEqual(await listed({ state: ['paused'] }), [first.sandboxId])
      assert.deepEqual(await listed({ template: 'another' }), [])
    })
  })
})

test('sandboxes start from a snapshot', async () => {
  await withSandbox({}, async (sandbox) => {
    await sandbox.files.write('/home/user/state', 'saved')
    const name = unique('snap')
    const snapshot = await sandbox.createSnapshot({ name })
    assert.ok(snapshot.names.some((one) => one.includes(name)))
    const found = await all(Sandbox.listSnapshots({ sandboxId: sandbox.sandboxId }))
    assert.deepEqual(found.map((one) => one.snapshotId), [snapshot.snapshotId])
    const another = await Sandbox.create(name, { timeoutMs: 60_000 })
    assert.equal(await another.files.read('/home/user/state'), 'saved')
    await another.kill()
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
  })
})

test('a template is built, tagged and used', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'template-'))
  mkdirSync(join(folder, 'files'))
  writeFileSync(join(folder, 'files', 'a.txt'), 'content')
  symlinkSync('a.txt', join(folder, 'files', 'link'))
  const name = unique('tpl')
  const logs = []
  try {
    const template = Template({ fileContextPath: folder })
      .fromBaseImage()
      .copy('files', 'copied', { mode: 0o640 })
      .setEnvs({ COLOUR: 'blue' })
      .setWorkdir('/srv/app')
      .runCmd('echo $(cat /home/user/copied/link) $COLOUR $PWD')
    const built = await Template.build(template, `${name}:v1`, {
      cpuCount: 1,
      memoryMB: 512,
      onBuildLogs: (entry) => logs.push(entry.message),
    })
    assert.ok(logs.includes('content blue /srv/app'), logs.join('\n'))
    assert.equal(await Template.exists(name), true)
    const tagged = await Template.assignTags(`${name}:v1`, ['stable', 'latest'])
    assert.equal(tagged.buildId, built.buildId)
    await Template.removeTags(name, 'latest')
    assert.deepEqual((await Template.getTags(name)).map((tag) => tag.tag).sort(), ['stable', 'v1'])
    const sandbox = await Sandbox.create(`${name}:stable`, { timeoutMs: 60_000 })
    assert.equal((await sandbox.commands.run('echo $COLOUR')).stdout, 'blue\n')
    assert.equal((await sandbox.getInfo()).memoryMB, 512)
    await sandbox.kill()
    const bad = Template().fromBaseImage().runCmd('echo the reason is this >&2; exit 7')
    await assert.rejects(Template.build(bad, name), /exit status 7[^]*the reason is this/)
  } finally {
    rmSync(folder, { recursive: true })
    await Sandbox.deleteSnapshot(name)
  }
  assert.equal(await Template.exists(name), false)
})

test('the content of a volume outlives sandboxes', async () => {
  const volume = await Volume.create(unique('vol'))
  try {
    await volume.makeDir('/a/b', { force: true })
    await volume.writeFile('/a/b/in', 'from outside')
    await withSandbox({ volumeMounts: { '/mnt/v': volume } }, async (sandbox) => {
      await sandbox.commands.run('cp /mnt/v/a/b/in /mnt/v/out && ln -s /etc/passwd /mnt/v/link')
    })
    assert.equal(await volume.readFile('/out'), 'from outside')
    await assert.rejects(volume.readFile('/link'))
    assert.deepEqual((await volume.list('/')).map((one) => one.name), ['a', 'link', 'out'])
    await volume.remove('/a')
    assert.equal(await volume.exists('/a'), false)
    const large = new Uint8Array(8 << 20).fill(7)
    await volume.writeFile('/large', large.buffer)
    assert.equal((await volume.readFile('/large', { format: 'bytes' })).length, large.length)
  } finally {
    assert.equal(await Volume.destroy(volume.volumeId), true)
  }
  assert.equal(await Volume.destroy(volume.volumeId), false)
})

test('a secret is kept and not told', async () => {
  const name = unique('key')
  const made = await Secret.create(name, 'first')
  assert.equal(made.version, 1)
  assert.equal((await Secret.update(name, 'second')).version, 2)
  assert.equal((await Secret.getInfo(made.secretId)).name, name)
  assert.equal(await Secret.destroy(name), true)
  assert.equal(await Secret.exists(name), false)
})

// Runs code that arrives as lines of JSON on one descriptor, and answers with lines of JSON on another.
'use strict'

const { spawnSync } = require('node:child_process')
const { createRequire } = require('node:module')
const { PassThrough } = require('node:stream')
const fs = require('node:fs')
const module_ = require('node:module')
const net = require('node:net')
const path = require('node:path')
const readline = require('node:readline')
const repl = require('node:repl')
const util = require('node:util')

const [requests, answers] = process.argv.slice(2).map(Number)
process.argv.splice(1)

// Node's own REPL knows how to keep declarations between pieces of code, how to await at the top level, and how to break out of
// a loop on SIGINT. Nothing is ever typed into this one.
const shell = repl.start({ prompt: '', input: new PassThrough(), output: new PassThrough(), useGlobal: true, breakEvalOnSigint: true })
shell.removeAllListeners('exit')
globalThis.require = createRequire(path.join(process.cwd(), 'code.js'))

// How the code that runs is ended from outside of it.
let fail = null
const late = (error) => process.stderr.write(`Uncaught ${util.inspect(error)}\n`)
const interrupted = () => fail && fail(named('KeyboardInterrupt', 'the code was interrupted'))
process.on('SIGINT', interrupted)
shell.removeAllListeners('SIGINT')
shell.on('SIGINT', interrupted)
process.on('uncaughtException', late)
process.on('unhandledRejection', late)
// The REPL would print what is thrown in its domain into its own output.
if (shell._domain) {
  shell._domain.removeAllListeners('error')
  shell._domain.on('error', (error) => fail ? fail(error) : late(error))
}

// Imports become `await import(...)`, which is allowed between other code and keeps its names.
function withDynamicImports (code) {
  const statement = /^([ \t]*)import\s+(?:([\w$]+)\s*,?\s*)?(?:\{([^}]*)\}|\*\s*as\s+([\w$]+))?\s*(from\s*)?(['"])([^'"\n]+)\6[ \t]*;?/gm
  return code.replace(statement, (whole, indent, byDefault, named, all, from, _quote, source) => {
    const found = `await import(${JSON.stringify(resolved(source))})`
    if (!from) return byDefault || named !== undefined || all ? whole : `${indent}${found};`
    const parts = []
    if (byDefault) parts.push(`default: ${byDefault}`)
    if (named) parts.push(named.replace(/\btype\s+[\w$]+\s*,?/g, '').replace(/([\w$]+)\s+as\s+([\w$]+)/g, '$1: $2'))
    const lines = []
    if (all) lines.push(`var ${all} = ${found};`)
    if (parts.length || !all) lines.push(`var { ${parts.join(', ')} } = ${found};`)
    return indent + lines.join(' ')
  })
}

// Relative to the working directory: the code has no file of its own.
function resolved (source) {
  if (/^\.{0,2}\//.test(source)) return require('node:url').pathToFileURL(path.resolve(source)).href
  if (module_.isBuiltin && module_.isBuiltin(source)) return source
  try {
    return require('node:url').pathToFileURL(globalThis.require.resolve(source)).href
  } catch {
    return source
  }
}

function withoutTypes (code) {
  if (module_.stripTypeScriptTypes) return module_.stripTypeScriptTypes(code, { mode: 'transform' })
  const options = { preserveValueImports: true, importsNotUsedAsValues: 'preserve' }
  const tsconfig = JSON.stringify({ compilerOptions: options })
  const made = spawnSync('esbuild', ['--loader=ts', '--target=esnext', '--log-level=error', `--tsconfig-raw=${tsconfig}`], {
    input: code, encoding: 'utf8', maxBuffer: 1 << 28
  })
  if (made.error) throw new Error('TypeScript needs `esbuild`, or a node that strips types itself')
  if (made.status !== 0) throw new SyntaxError(made.stderr.trim())
  return made.stdout
}

function evaluate (code) {
  return new Promise((resolve, reject) => {
    fail = (error) => {
      const broken = error && error.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED'
      reject(broken ? named('KeyboardInterrupt', 'the code was interrupted') : error)
    }
    // The REPL watches for the signal while code holds the thread; a listener of ours would undo that.
    process.removeListener('SIGINT', interrupted)
    try {
      shell.eval(code, shell.context, 'code.js', (error, value) => error ? fail(error) : resolve(value))
    } finally {
      process.on('SIGINT', interrupted)
    }
  }).finally(() => { fail = null })
}

function named (name, message) {
  const error = new Error(message)
  error.name = name
  error.stack = `${name}: ${message}`
  return error
}

function shown (value) {
  if (value === undefined) return null
  const bundle = { 'text/plain': typeof value === 'string' ? value : util.inspect(value) }
  if (value !== null && typeof value === 'object') {
    for (const [method, mime] of [['_toHtml', 'text/html'], ['_toPng', 'image/png'], ['_toSvg', 'image/svg+xml']]) {
      if (typeof value[method] === 'function') bundle[mime] = String(value[method]())
    }
    if (Array.isArray(value) || Object.getPrototypeOf(value) === Object.prototype) {
      try {
        bundle['application/json'] = JSON.parse(JSON.stringify(value))
      } catch {}
    }
  }
  return bundle
}

function described (thrown) {
  // Code that only lacks its end, as the REPL sees it.
  if (thrown instanceof repl.Recoverable) thrown = thrown.err
  const isError = thrown !== null && typeof thrown === 'object' && 'stack' in thrown
  return {
    ename: isError ? String(thrown.name) : 'Error',
    evalue: isError ? String(thrown.message) : util.inspect(thrown),
    traceback: [isError ? String(thrown.stack) : util.inspect(thrown)]
  }
}

function answer (value) {
  fs.writeSync(answers, JSON.stringify(value) + '\n')
}

async function execute ({ code, env, typescript }) {
  const before = Object.fromEntries(Object.keys(env).map((name) => [name, process.env[name]]))
  Object.assign(process.env, env)
  try {
    const value = await evaluate(withDynamicImports(typescript ? withoutTypes(code) : code))
    return { result: shown(value) }
  } catch (thrown) {
    return { error: described(thrown) }
  } finally {
    for (const [name, value] of Object.entries(before)) {
      if (value === undefined) delete process.env[name]
      else process.env[name] = value
    }
  }
}

// `display(value)` shows a value, or a bundle of representations when the names are MIME types.
globalThis.display = (value) => {
  const isBundle = value !== null && typeof value === 'object' && Object.keys(value).length > 0 &&
    Object.keys(value).every((name) => name.includes('/'))
  answer({ display: isBundle ? value : shown(value) || { 'text/plain': 'undefined' } })
}

// A socket, not a file: an interrupt ends the reading of a file with an error.
const lines = readline.createInterface({ input: new net.Socket({ fd: requests, readable: true, writable: false }) })
let last = Promise.resolve()
lines.on('line', (line) => { last = last.then(() => execute(JSON.parse(line))).then(answer) })
lines.on('close', () => process.exit())

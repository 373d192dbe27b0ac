// Checks Kubernetes objects against the schemas of their kinds, and refuses unknown keys.
//
// Usage: node schemas.mjs PACKAGES, the folder node_modules. The first line of standard input
// is {KIND: schema of a CRD}, and each other line a list of objects, all as JSON. Answers each
// list with a line: the list of findings.
import {createRequire} from 'node:module';
import {join} from 'node:path';
import {createInterface} from 'node:readline';
import {pathToFileURL} from 'node:url';

const packages = process.argv[2];
const Ajv = createRequire(join(packages, 'here'))('ajv').default;
const schemas = {};  // The compiled schemas of CRDs.

// Returns a function that checks an object of this kind, and throws what it finds.
async function findSchema({apiVersion, kind}) {
  if (kind in schemas) {
    return (data) => {
      if (schemas[kind](data)) return;
      const errors = schemas[kind].errors.map((e) => `${e.instancePath} ${e.message}`);
      throw new Error(errors.join('; '));
    };
  }
  const name = apiVersion.startsWith('monitoring.coreos.com/')
    ? '@kubernetes-models/prometheus-operator' : 'kubernetes-models';
  const model = await import(pathToFileURL(join(packages, name, apiVersion, `${kind}.js`)));
  return (data) => model[kind].prototype.validate.call(data);
}

// Returns `value` with a note of each key that is read. A validator reads the keys that its
// schema has, and all keys of a map.
function watch(value, seen, path) {
  if (value === null || typeof value !== 'object') return value;
  return new Proxy(value, {
    get(target, key) {
      if (!Object.hasOwn(target, key)) return target[key];
      seen.add(`${path}/${String(key)}`);
      return watch(target[key], seen, `${path}/${String(key)}`);
    },
  });
}

function* unread(value, seen, path) {
  if (value === null || typeof value !== 'object') return;
  for (const [key, part] of Object.entries(value)) {
    const here = `${path}/${key}`;
    if (seen.has(here)) yield* unread(part, seen, here);
    else yield here;
  }
}

async function check(object) {
  const seen = new Set();
  const found = [];
  try {
    (await findSchema(object))(watch(object, seen, ''));
  } catch (error) {
    found.push(error.message.replaceAll('\n', ' '));
  }
  found.push(...Array.from(unread(object, seen, ''), (path) => `unknown key ${path}`));
  return found.map((finding) => `${object.kind}: ${finding}`);
}

const lines = createInterface({input: process.stdin})[Symbol.asyncIterator]();
for (const [kind, schema] of Object.entries(JSON.parse((await lines.next()).value))) {
  schemas[kind] = new Ajv({strict: false, allErrors: true, validateFormats: false})
    .compile(schema);
}
for await (const line of lines) {
  console.log(JSON.stringify((await Promise.all(JSON.parse(line).map(check))).flat()));
}

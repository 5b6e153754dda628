// A schema of the OpenAPI document in the notation that programmers read, `{ status: "paid", … }`.
// No DOM.

const named = (document, ref) => document.components.schemas[ref.split('/').pop()];

/** The bounds of a value, as a remark. */
function bounds({ minimum, maximum, minLength, maxLength, pattern, format, type }) {
  const remarks = [];
  if (minimum !== undefined || maximum !== undefined) remarks.push(`${minimum ?? '…'} to ${maximum ?? '…'}`);
  if (minLength !== undefined || maxLength !== undefined) remarks.push(`${minLength ?? 0} to ${maxLength ?? '…'} characters`);
  if (pattern) remarks.push(pattern);
  if (format && ![type].flat().includes('integer')) remarks.push(format);
  return remarks.join(', ');
}

/** Text of several lines; `depth` is how deep it stands, `seen` what it stands in. */
export function shape(document, schema = {}, depth = 0, seen = []) {
  if (schema.$ref) {
    const name = schema.$ref.split('/').pop();
    return seen.includes(name) ? name : shape(document, named(document, schema.$ref), depth, [...seen, name]);
  }
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(' | ');
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) return choices.map((one) => shape(document, one, depth, seen)).join(' | ');
  const allOf = schema.allOf?.map((one) => (one.$ref ? named(document, one.$ref) : one)) ?? [];
  const properties = Object.assign({}, ...allOf.map((one) => one.properties), schema.properties);
  if (Object.keys(properties).length) {
    const required = [schema, ...allOf].flatMap((one) => one.required ?? []);
    const space = '  '.repeat(depth + 1);
    const lines = Object.entries(properties).flatMap(([name, one]) => {
      const [remark] = [[one.description?.split('\n')[0], bounds(one)].filter(Boolean).join(' ')];
      return [...(remark ? [`${space}// ${remark}`] : []), `${space}${name}${required.includes(name) ? '' : '?'}: ${shape(document, one, depth + 1, seen)}`];
    });
    return `{\n${lines.join('\n')}\n${'  '.repeat(depth)}}`;
  }
  const types = [schema.type ?? 'any'].flat();
  return types.map((type) => (type === 'array' ? `[${shape(document, schema.items, depth, seen)}, …]` : type)).join(' | ');
}

/** How to ask from a terminal. */
export function curl({ method, path, operation, document, origin }) {
  const body = operation.requestBody?.content?.['application/json']?.schema;
  const secured = Object.keys(Object.assign({}, ...(operation.security ?? [])));
  return [
    `curl${method === 'get' ? '' : ` -X ${method.toUpperCase()}`} '${origin}${path}'`,
    ...(secured.length ? [`  -H 'authorization: Bearer ${secured.includes('admin') ? '$ADMIN_TOKEN' : '$TOKEN'}'`] : []),
    ...(body ? ["  -H 'content-type: application/json'", `  -d '${JSON.stringify(example(document, body))}'`] : []),
  ].join(' \\\n');
}

/** Something that fits: what has to be there, and nothing more. */
function example(document, schema) {
  if (schema.$ref) return example(document, named(document, schema.$ref));
  if (schema.example !== undefined) return schema.example;
  if (schema.enum) return schema.enum[0];
  const type = [schema.type].flat()[0];
  if (type === 'object') return Object.fromEntries((schema.required ?? []).map((name) => [name, example(document, schema.properties[name])]));
  return { integer: schema.minimum ?? 1, number: 1, boolean: true, array: [] }[type] ?? '…';
}

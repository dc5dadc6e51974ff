
"use strict";
// Shows the description that the server gives. All text enters the page as text, never as markup.

let description;

function make(tag, className, ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...content);
  return element;
}

function resolve(schema) {
  const path = schema && schema.$ref;
  if (!path) return schema;
  return path.slice(2).split("/").reduce((value, name) => value[name], description);
}

const nameOf = (schema) => schema.$ref.split("/").pop();

// A schema in a few words.
function inWords(schema) {
  if (schema === true || schema === undefined) return "anything";
  if (schema.$ref) return nameOf(schema);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const several = schema.anyOf || schema.oneOf;
  if (several) return several.map(inWords).join(" | ");
  const types = [].concat(schema.type || "anything");
  const words = types.map((type) => {
    if (type === "array") return "list of " + (schema.items ? inWords(schema.items) : "anything");
    if (type === "object" && schema.additionalProperties && schema.additionalProperties !== true) {
      return "object of " + inWords(schema.additionalProperties);
    }
    return type;
  });
  const bounds = [
    ["minimum", "from"], ["maximum", "to"], ["minLength", "at least"], ["maxLength", "at most"],
    ["minItems", "at least"], ["maxItems", "at most"], ["maxProperties", "at most"],
  ];
  const told = bounds.filter(([key]) => schema[key] !== undefined).map(([key, word]) => word + " " + schema[key]);
  return words.join(" | ") + (told.length ? " (" + told.join(" ") + ")" : "");
}

// Every component that a schema names, itself or within lists and choices.
function named(schema) {
  if (!schema || schema === true) return [];
  if (schema.$ref) return [schema];
  const inner = [...(schema.anyOf || []), ...(schema.oneOf || []), ...(schema.items ? [schema.items] : [])];
  return inner.flatMap(named);
}

// A component, whose fields are made once somebody opens it: there may be circles.
function component(reference) {
  const box = make("details", "", make("summary", "", make("code", "", nameOf(reference))));
  box.addEventListener("toggle", () => {
    if (box.open && box.childElementCount === 1) box.append(fields(resolve(reference)));
  });
  return box;
}

function fields(schema) {
  const list = make("dl");
  if (schema.description) list.append(make("dd", "quiet", schema.description));
  const choices = (schema.oneOf || schema.anyOf || []).map(resolve);
  for (const choice of choices) list.append(make("dd", "", "either", fields(choice)));
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const isNeeded = (schema.required || []).includes(name);
    const term = make("dt", "", make("code", "", name), " ", make("span", "quiet", inWords(field)));
    if (isNeeded) term.append(" ", make("span", "needed", "needed"));
    if (field.default !== undefined) term.append(" ", make("span", "quiet", "default " + JSON.stringify(field.default)));
    const about = make("dd", "", field.description || "");
    about.append(...named(field).map(component));
    list.append(term, about);
  }
  return list;
}

function whole(schema) {
  const names = named(schema);
  return names.length ? make("div", "", ...names.map(component)) : make("p", "quiet", inWords(schema));
}

function quoted(text) {
  return "'" + text.replaceAll("'", "'\\''") + "'";
}

function curl(method, path, operation, body) {
  const words = ["curl " + location.origin + location.pathname.replace(/\/docs$/, "") + path];
  if (method !== "get") words[0] = words[0].replace("curl ", "curl -X " + method.toUpperCase() + " ");
  if (description.security && !(operation.security && operation.security.length === 0)) {
    words.push("-H 'authorization: Bearer KEY'");
  }
  if (body !== undefined) {
    words.push("-H 'content-type: application/json'", "-d " + quoted(JSON.stringify(body, null, 2)));
  }
  return make("pre", "", words.join(" \\\n  "));
}

function operationBox(method, path, operation) {
  const summary = make("summary", "", make("span", "method", method), make("span", "path", path), " ", make("small", "", operation.summary));
  const box = make("details", "operation", summary);
  box.dataset.words = [method, path, operation.summary].join(" ").toLowerCase();
  box.addEventListener("toggle", () => {
    if (!box.open || box.childElementCount > 1) return;
    if (operation.parameters.length) {
      const list = make("dl");
      for (const parameter of operation.parameters) {
        list.append(
          make("dt", "", make("code", "", parameter.name), " ", make("span", "quiet", parameter.in + ", " + inWords(parameter.schema))),
          make("dd", "", parameter.description),
        );
      }
      box.append(make("h4", "", "Parameters"), list);
    }
    const json = operation.requestBody && operation.requestBody.content["application/json"];
    if (json) box.append(make("h4", "", "Body"), whole(json.schema));
    const examples = json ? Object.values(json.examples) : [{ summary: "" }];
    box.append(make("h4", "", "With curl"));
    for (const example of examples) {
      if (example.summary) box.append(make("p", "quiet", example.summary));
      box.append(curl(method, path, operation, example.value));
    }
    box.append(make("h4", "", "Answers"));
    for (const [status, answer] of Object.entries(operation.responses)) {
      box.append(make("p", "", make("code", "", status), " ", answer.description));
      for (const [media, content] of Object.entries(answer.content || {})) {
        const about = make("p", "quiet", media + (content.schema.description ? ": " + content.schema.description : ""));
        box.append(about, ...named(content.schema).concat(named(content["x-event-schema"])).map(component));
      }
    }
  });
  return box;
}

function show() {
  document.getElementById("version").textContent = description.info.version;
  const main = document.getElementById("main");
  main.replaceChildren(...description.info.description.split("\n\n").map((text) => make("p", "", text)));
  const tags = new Map();
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags[0];
      if (!tags.has(tag)) tags.set(tag, []);
      tags.get(tag).push(operationBox(method, path, operation));
    }
  }
  for (const [tag, boxes] of tags) main.append(make("section", "", make("h2", "", tag), ...boxes));
}

async function read() {
  const field = document.getElementById("key");
  const headers = field.value ? { authorization: "Bearer " + field.value } : {};
  const answer = await fetch("openapi.json", { headers });
  if (answer.status === 401) {
    field.parentElement.hidden = false;
    document.getElementById("state").textContent = "This server wants an API key.";
    return;
  }
  description = await answer.json();
  show();
}

function report(error) {
  document.getElementById("main").replaceChildren(make("p", "", "The description cannot be shown: " + error));
}

document.getElementById("key").addEventListener("change", () => read().catch(report));
document.getElementById("find").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const box of document.querySelectorAll(".operation")) {
    box.hidden = !words.every((word) => box.dataset.words.includes(word));
  }
});
read().catch(report);

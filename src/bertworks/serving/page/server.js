// Ask the server: a path and a body in; its answer, how long it took and the same request for a terminal out.

import { say } from "./words.js";

const KEY = "bertworks-key";
// Shown in a command instead of the key itself, which must not end up in a shell's history or a screenshot.
const KEY_IN_COMMAND = "$BERTWORKS_KEY";

let askForKey = async () => null;

/** What the server refused, or that it did not answer (status 0). The message is a sentence for people. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Say how a key is asked for: a function that is told whether one was refused, and gives a key or null. */
export function onKeyAsked(act) {
  askForKey = act;
}

/** Send `body` (none: a plain reading) and return {answer, milliseconds, command}; a missing key is asked for. */
export async function ask(path, body = null, signal = undefined) {
  const begun = performance.now();
  const answer = await send(path, body, signal);
  const took = performance.now() - begun;
  if (answer.status === 401) {
    const key = await askForKey(savedKey() !== null);
    if (key === null) throw new Refused(401, await sentence(answer));
    saveKey(key);
    return ask(path, body, signal);
  }
  if (!answer.ok) throw new Refused(answer.status, await sentence(answer));
  return { answer: await answer.json(), milliseconds: took, command: command(path, body) };
}

/** Return the address of something a model can do. */
export function pathOf(model, verb) {
  return `v1/models/${encodeURIComponent(model.name)}/${verb}`;
}

/** Return a line for a terminal that sends the same request. */
export function command(path, body) {
  const parts = ["curl -s", quoted(new URL(path, document.baseURI).href)];
  if (savedKey() !== null) parts.push(`-H "Authorization: Bearer ${KEY_IN_COMMAND}"`);
  if (body !== null) parts.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body))}`);
  return parts.join(" ");
}

async function send(path, body, signal) {
  const headers = { Accept: "application/json" };
  if (savedKey() !== null) headers.Authorization = `Bearer ${savedKey()}`;
  if (body !== null) headers["Content-Type"] = "application/json";
  const request = { method: body === null ? "GET" : "POST", headers, signal };
  if (body !== null) request.body = JSON.stringify(body);
  try {
    return await fetch(new URL(path, document.baseURI), request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, say("error.silent"));
  }
}

async function sentence(answer) {
  const wait = answer.headers.get("Retry-After");
  if (answer.status === 429 && wait) return say("error.busy", { seconds: wait });
  try {
    const { message } = (await answer.json()).error;
    const begun = message.charAt(0).toUpperCase() + message.slice(1);
    return /[.!?。！？]$/.test(begun) ? begun : `${begun}.`;
  } catch {
    return say("error.status", { status: answer.status });
  }
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function savedKey() {
  return sessionStorage.getItem(KEY);
}

function saveKey(key) {
  sessionStorage.setItem(KEY, key);
}

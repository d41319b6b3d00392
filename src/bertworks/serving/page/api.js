// The HTTP API: a path and a body in; the response, its latency and the same request as a curl command out.

import { t } from "./i18n.js";

const STORAGE_KEY = "bertworks-key";
// Replaces the API key in a curl command, so that it does not end up in a shell history or a screenshot.
const KEY_VARIABLE = "$BERTWORKS_KEY";

let promptForKey = async () => null;

/** An error response, or no response (status 0). The message is a sentence to show. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Set the function that asks for an API key: it gets whether a key was rejected, and resolves to a key or null. */
export function onApiKeyRequired(callback) {
  promptForKey = callback;
}

/** POST `body`, or GET without one; return {response, milliseconds, command}. Asks for an API key if required. */
export async function request(path, body = null, signal = undefined) {
  const startTime = performance.now();
  const httpResponse = await send(path, body, signal);
  const milliseconds = performance.now() - startTime;
  if (httpResponse.status === 401) {
    const key = await promptForKey(storedKey() !== null);
    if (key === null) throw new ApiError(401, await errorMessage(httpResponse));
    storeKey(key);
    return request(path, body, signal);
  }
  if (!httpResponse.ok) throw new ApiError(httpResponse.status, await errorMessage(httpResponse));
  return { response: await httpResponse.json(), milliseconds, command: curlCommand(path, body) };
}

/** Return the path of a model's endpoint. */
export function modelPath(model, endpoint) {
  return `v1/models/${encodeURIComponent(model.name)}/${endpoint}`;
}

/** Return the curl command of a request. */
export function curlCommand(path, body) {
  const parts = ["curl -s", shellQuote(new URL(path, document.baseURI).href)];
  if (storedKey() !== null) parts.push(`-H "Authorization: Bearer ${KEY_VARIABLE}"`);
  if (body !== null) parts.push("-H 'Content-Type: application/json'", `-d ${shellQuote(JSON.stringify(body))}`);
  return parts.join(" ");
}

async function send(path, body, signal) {
  const headers = { Accept: "application/json" };
  if (storedKey() !== null) headers.Authorization = `Bearer ${storedKey()}`;
  if (body !== null) headers["Content-Type"] = "application/json";
  const options = { method: body === null ? "GET" : "POST", headers, signal };
  if (body !== null) options.body = JSON.stringify(body);
  try {
    return await fetch(new URL(path, document.baseURI), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, t("error.no_response"));
  }
}

async function errorMessage(httpResponse) {
  const seconds = httpResponse.headers.get("Retry-After");
  if (httpResponse.status === 429 && seconds) return t("error.busy", { seconds });
  try {
    const { message } = (await httpResponse.json()).error;
    const sentence = message.charAt(0).toUpperCase() + message.slice(1);
    return /[.!?。！？]$/.test(sentence) ? sentence : `${sentence}.`;
  } catch {
    return t("error.status", { status: httpResponse.status });
  }
}

function shellQuote(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function storedKey() {
  return sessionStorage.getItem(STORAGE_KEY);
}

function storeKey(key) {
  sessionStorage.setItem(STORAGE_KEY, key);
}

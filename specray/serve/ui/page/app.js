// The page's whole logic: status polled while it is visible, and answers read from one stream each.
const PERIOD_MS = 1000;
const HISTORY = 120; // polls
const $ = (id) => document.getElementById(id);

// Status.

let before = null; // the totals of the poll before, and when
const speeds = [];

async function poll() {
  if (!document.hidden) {
    try {
      const reply = await fetch("status", { cache: "no-store" });
      if (!reply.ok) throw new Error(`status ${reply.status}`);
      show(await reply.json(), performance.now());
    } catch (error) {
      $("policy").textContent = `No connection to the router (${error.message}); trying again.`;
    }
  }
  setTimeout(poll, PERIOD_MS);
}

function show(status, at) {
  const totals = sum(status.targets);
  if (before) showRates(totals, before.totals, (at - before.at) / 1000);
  before = { totals, at };
  showPolicy(status);
  showTopology(status);
  fillModels(status.models);
}

function sum(targets) {
  const totals = { committed: 0, requestSteps: 0, proposed: 0, accepted: 0 };
  for (const { counters } of targets) {
    if (!counters) continue;
    totals.committed += counters.num_committed;
    totals.requestSteps += counters.num_request_steps;
    for (const source of Object.values(counters.sources)) {
      totals.proposed += source.num_proposed;
      totals.accepted += source.num_accepted;
    }
  }
  return totals;
}

function showRates(now, then, seconds) {
  const added = (name) => Math.max(0, now[name] - then[name]); // less: a replica was replaced
  const speed = added("committed") / seconds;
  speeds.push(speed);
  if (speeds.length > HISTORY) speeds.shift();
  $("speed").textContent = speed.toFixed(1);
  $("depth").textContent = ratio(added("proposed"), added("requestSteps"));
  $("efficiency").textContent = ratio(added("committed"), added("requestSteps"));
  const isBusy = added("proposed") > 0;
  const [accepted, proposed] = isBusy
    ? [added("accepted"), added("proposed")] : [now.accepted, now.proposed];
  $("acceptance").textContent = proposed ? `${Math.round(100 * accepted / proposed)} %` : "–";
  $("acceptance-note").textContent = isBusy ? "in the last second" : "since the start";
  drawHistory();
}

const ratio = (part, whole) => (whole ? (part / whole).toFixed(2) : "–");

function drawHistory() {
  const highest = Math.max(1, ...speeds);
  const points = speeds.map((speed, i) => {
    const x = 600 - (speeds.length - 1 - i) * (600 / (HISTORY - 1));
    return `${x.toFixed(1)} ${(58 - 54 * speed / highest).toFixed(1)}`;
  });
  $("history").querySelector("path").setAttribute("d", `M${points.join("L")}`);
}

function showPolicy({ policy, targets }) {
  if (!policy) return;
  const text = !targets.length ? "No target with speculation has been heard of."
    : policy.is_enabled ? `Speculation is on: depth up to ${policy.max_depth}, waits up to ${policy.max_wait_ms} ms.`
    : "Speculation is switched off by the live policy.";
  if ($("policy").textContent !== text) $("policy").textContent = text; // said once
}

function fillModels(models) {
  const options = [...$("model").options].map((option) => option.value);
  if (options.join() === models.join()) return;
  $("model").replaceChildren(...models.map((model) => new Option(model, model)));
}

// Topology.

function showTopology(status) {
  cards("drafts", status.drafts, (draft) => [
    draft.address, `${counted(draft.num_sessions, "session")} of this router`, draft.is_connected]);
  cards("routers", status.routers.map((name) => ({ address: name })), ({ address }) => [
    address, address === status.router ? "answers this page" : "another replica", true]);
  cards("targets", status.targets, ({ address, counters, is_connected }) => [
    address,
    counters ? `${counted(counters.num_open_sessions, "request")}, ${counted(counters.num_routers, "router")}` : "does not answer",
    is_connected && counters !== null]);
  const lost = Object.entries(status.fallbacks).filter(([, count]) => count)
    .map(([reason, count]) => `${reason.replaceAll("_", " ")} ${count}`);
  $("losses").textContent = lost.length ? `Sessions that lost their draft: ${lost.join(", ")}.` : "";
  drawStreams(status.router);
}

function counted(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}

function cards(id, replicas, describe) {
  const list = $(id);
  while (list.children.length > replicas.length) list.lastChild.remove();
  replicas.forEach((replica, i) => {
    const [name, text, isUp] = describe(replica);
    const card = list.children[i] ?? list.appendChild(document.createElement("li"));
    card.className = isUp ? "" : "down";
    card.dataset.name = name;
    const title = document.createElement("b");
    title.textContent = name;
    card.replaceChildren(title, isUp ? text : `${text}, not connected`);
  });
}

function drawStreams(router) {
  const drawing = $("topology").querySelector("svg");
  const origin = drawing.getBoundingClientRect();
  const own = [...$("routers").children].find((card) => card.dataset.name === router);
  drawing.replaceChildren();
  if (!own) return;
  for (const card of [...$("drafts").children, ...$("targets").children]) {
    const [from, to] = nearestEdges(card.getBoundingClientRect(), own.getBoundingClientRect());
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    line.setAttribute("class", card.className);
    line.setAttribute("x1", from.x - origin.x);
    line.setAttribute("y1", from.y - origin.y);
    line.setAttribute("x2", to.x - origin.x);
    line.setAttribute("y2", to.y - origin.y);
    drawing.append(line);
  }
}

function nearestEdges(a, b) {
  const middle = (box) => ({ x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2 });
  const [centreA, centreB] = [middle(a), middle(b)];
  if (a.right <= b.left) return [{ x: a.right, y: centreA.y }, { x: b.left, y: centreB.y }];
  if (b.right <= a.left) return [{ x: a.left, y: centreA.y }, { x: b.right, y: centreB.y }];
  return a.bottom <= b.top
    ? [{ x: centreA.x, y: a.bottom }, { x: centreB.x, y: b.top }]
    : [{ x: centreA.x, y: a.top }, { x: centreB.x, y: b.bottom }];
}

// Answers.

let abort = null;

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = new FormData(event.target);
  const question = {
    prompt: form.get("prompt"), model: form.get("model") || null,
    max_tokens: Number(form.get("max_tokens")), temperature: Number(form.get("temperature")),
  };
  abort = new AbortController();
  setBusy(true);
  const ask = [() => answer("on", question), () => answer("off", { ...question, num_speculative_tokens: 0 })];
  for (const side of ["on", "off"]) clear(side);
  let done;
  if (form.get("in_turn")) done = [await ask[0](), await ask[1]()];
  else done = await Promise.all(ask.map((begin) => begin()));
  setBusy(false);
  $("verdict").textContent = verdict(done, question);
});

$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
});
$("stop").addEventListener("click", () => abort?.abort());
addEventListener("resize", () => before && drawStreams([...$("routers").children]
  .find((card) => card.textContent.includes("answers this page"))?.dataset.name));

function setBusy(isBusy) {
  $("send").disabled = isBusy;
  $("stop").disabled = !isBusy;
  for (const side of ["on", "off"]) $(`${side}-text`).setAttribute("aria-busy", isBusy);
  if (isBusy) $("verdict").textContent = "Answering …";
  else $("send").focus({ preventScroll: true });
}

function clear(side) {
  $(`${side}-text`).replaceChildren();
  $(`${side}-figures`).textContent = "";
}

async function answer(side, question) {
  const state = { side, text: "", tokens: [], sources: [], accepted: 0, started: performance.now(), first: null, last: null };
  try {
    const reply = await fetch("answer", {
      method: "POST", signal: abort.signal, body: JSON.stringify(question),
      headers: { "Content-Type": "application/json" },
    });
    if (!reply.ok) throw new Error((await reply.json()).error?.message ?? `status ${reply.status}`);
    for await (const event of serverSentEvents(reply.body)) apply(state, event);
  } catch (error) {
    if (error.name !== "AbortError") fail(state, error.message);
  }
  return state;
}

async function* serverSentEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part.slice("data: ".length));
  }
}

function apply(state, event) {
  if (event.kind === "tokens") append(state, event.texts);
  if (event.kind === "accepted") accept(state, event);
  if (event.kind === "end") state.usage = event.usage;
  if (event.kind === "error") fail(state, event.message);
  showFigures(state);
}

function append(state, texts) {
  state.last = performance.now();
  state.first ??= state.last;
  const area = $(`${state.side}-text`);
  const isAtEnd = area.scrollHeight - area.scrollTop - area.clientHeight < 40;
  for (const text of texts) {
    const token = document.createElement("span");
    token.textContent = text;
    state.text += text;
    state.tokens.push(token);
    colour(state, state.tokens.length - 1);
    area.append(token);
  }
  if (isAtEnd) area.scrollTop = area.scrollHeight;
}

const TITLES = {
  prompt_lookup: "copied by prompt lookup",
  ngram: "guessed by n-grams",
  model: "guessed by the draft model",
  stop_gap: "copied by the target itself",
  stop_gap_shared: "copied by the target from earlier answers",
  stop_gap_ngram: "guessed by the target's own n-grams",
  engine: "guessed by vLLM's drafter inside the target",
};

function accept(state, { position, num_tokens, source }) {
  state.accepted += num_tokens;
  for (let i = position; i < position + num_tokens; i++) {
    state.sources[i] = source; // its text may be still on its way
    if (i < state.tokens.length) colour(state, i);
  }
}

function colour(state, i) {
  const source = state.sources[i];
  if (!source) return;
  state.tokens[i].className = source;
  state.tokens[i].title = TITLES[source] ?? source;
}

function showFigures(state) {
  if (state.first === null) return;
  const seconds = (state.last - state.first) / 1000;
  const count = state.tokens.length;
  const parts = [`first token ${Math.round(state.first - state.started)} ms`, `${count} tokens`];
  if (seconds > 0) parts.push(`${((count - 1) / seconds).toFixed(1)} tokens/s`);
  if (state.side === "on") parts.push(`${state.accepted} accepted`);
  $(`${state.side}-figures`).textContent = parts.join(" · ");
}

function fail(state, message) {
  state.hasFailed = true;
  const note = document.createElement("p");
  note.className = "error";
  note.textContent = message;
  $(`${state.side}-text`).append(note);
}

function verdict([on, off], { temperature }) {
  if (on.hasFailed || off.hasFailed) return "The request failed; the reason stands where its answer would be.";
  if (abort.signal.aborted) return "Stopped.";
  if (temperature > 0) return "Done. Sampled answers differ from each other; their distribution is the same.";
  if (on.text === off.text) return "Done. Both answers are the same, character by character.";
  return "Done. The answers differ: at temperature 0 that happens only where two tokens are all but "
    + "equally likely, as batches of other shapes round differently.";
}

poll();

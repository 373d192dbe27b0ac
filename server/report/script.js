// Shows status.json, and asks for it again every two seconds. Texts of the job, such as the
// names of layers, are shown as text and never as HTML.
"use strict";

const at = (id) => document.getElementById(id);

// Returns a time in seconds as text of three digits.
function time(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds >= 100) return Math.round(seconds) + " s";
  return seconds >= 1 ? seconds.toPrecision(3) + " s"
    : Number((1000 * seconds).toPrecision(3)) + " ms";
}

function bytes(count) {
  for (const unit of ["B", "kB", "MB"]) {
    if (count < 1000) return Number(count.toPrecision(3)) + " " + unit;
    count /= 1000;
  }
  return Number(count.toPrecision(3)) + " GB";
}

const percent = (share) => Math.round(100 * share) + " %";

// Fills an element with a table. A cell is a number as text, {text}, or a node; a row may be
// {marked, cells}.
function table(id, head, rows) {
  const made = document.createElement("table");
  const line = made.insertRow();
  for (const title of head) {
    const cell = line.appendChild(document.createElement("th"));
    cell.textContent = title;
  }
  for (const row of rows) {
    const { marked = false, cells = row } = row;
    const tr = made.insertRow();
    tr.className = marked ? "marked" : "";
    for (const cell of cells) {
      const td = tr.insertCell();
      if (cell instanceof Node) {
        td.append(cell);
      } else {
        td.className = cell.text === undefined ? "number" : "text";
        td.textContent = cell.text === undefined ? cell : cell.text;
      }
    }
  }
  at(id).replaceChildren(rows.length === 0 ? "none" : made);
}

const text = (value) => ({ text: value === null ? "-" : String(value) });

function bar(share) {
  const made = document.createElement("span");
  made.className = "bar";
  made.style.width = Math.min(20, 20 * share).toFixed(2) + "rem";
  return made;
}

// Returns the mean of a part of the step over the workers that have one; null: none has.
function meanPart(workers, part) {
  const known = workers.filter((worker) => worker.step_seconds !== null);
  if (known.length === 0) return null;
  return known.reduce((sum, worker) => sum + worker.step_seconds[part], 0) / known.length;
}

function showStep(status) {
  const names = { forward: "before the first push: forward, and loading examples",
    backward: "from there to the last push: backward", other: "after it: the optimizer",
    waiting: "waiting for the job: exposed communication",
    turn: "waiting for the device, which other jobs use" };
  const parts = Object.keys(names).map((part) => [names[part], meanPart(status.workers, part)])
    .filter(([name, seconds]) => name !== names.turn || seconds > 0);
  const measured = parts.reduce((sum, [, seconds]) => sum + seconds, 0);
  const rows = measured === 0 ? [] : parts.map(([name, seconds]) =>
    [text(name), time(seconds), percent(seconds / measured), bar(seconds / measured)]);
  if (measured > 0) rows.push([text("sum, mean of the workers"), time(measured), "", text("")]);
  if (status.step_seconds.predicted !== null) {
    rows.push([text("predicted by the plan"), time(status.step_seconds.predicted), "", text("")]);
  }
  table("step", ["part", "time", "share", ""], rows);
}

// Returns why the others wait for a member, and what it waits for itself.
function trouble(member) {
  const all = [];
  if (member.left) all.push("has left");
  if (!member.left && member.seconds_since_heartbeat >= 3) {
    all.push("silent for " + time(member.seconds_since_heartbeat));
  }
  if (member.late.cause === "computing") all.push("its program computes longer");
  if (member.late.cause === "link") {
    all.push("its link is busy " + percent(member.link_busy) + " of the time");
  }
  if (member.split) all.push("a host of its own: it could not connect to its host's workers");
  if (member.stall !== null) {
    all.push("has waited " + time(member.stall.seconds) + " for " + member.stall.missing +
      " in layer " + member.stall.layer);
  }
  return text(all.join("; ") || "-");
}

function isMarked(member) {
  return !member.left && (member.late.cause !== null || member.seconds_since_heartbeat >= 3);
}

// Silent members come first, then the latest.
function order(a, b) {
  const silence = (member) => member.left ? 0 : Math.floor(member.seconds_since_heartbeat / 3);
  return silence(b) - silence(a) || b.late.seconds - a.late.seconds;
}

function showWorkers(status) {
  const rows = [...status.workers].sort(order).map((worker) => {
    const step = worker.step_seconds;
    return { marked: isMarked(worker), cells: [
      text(worker.name), worker.rank, text(worker.address), text(worker.host), worker.round,
      step === null ? "-" : time(step.forward + step.backward + step.other),
      step === null ? "-" : time(step.waiting), time(worker.late.seconds),
      worker.link_busy === null ? "-" : percent(worker.link_busy), trouble(worker)] };
  });
  table("workers", ["worker", "rank", "address", "host", "round done", "computing", "waiting",
    "late", "link busy", "why"], rows);
}

function showServers(status) {
  const place = (shard, index) => {
    const servers = status.shard_servers[index];
    if (servers === undefined) return text("-");
    return text((servers.primary === index ? "here" : "at server " + servers.primary) +
      (servers.backup_is_current ? ", backup at server " + servers.backup : ", no current backup"));
  };
  const rows = [...status.shards].sort(order).map((server) => ({ marked: isMarked(server),
    cells: [server.index, text(server.name), text(server.address), text(server.host),
      bytes(server.bytes), server.chunks, place(server, server.index),
      server.link_busy === null ? "-" : percent(server.link_busy), trouble(server)] }));
  table("servers", ["server", "process", "address", "host", "stored", "chunks",
    "values of its shard", "link busy", "why"], rows);
  const without = status.shard_servers.filter((shard) => !shard.backup_is_current).length;
  at("loss").textContent = status.shard_servers.length === 0
    ? "The shards have no backups: the loss of a server takes the job back to a checkpoint."
    : without === 0 ? "Any one server may be lost, and no step with it."
      : without + " of " + status.shard_servers.length + " shards have no current backup.";
}

function showLayers(status) {
  table("layers", ["layer", "scheme", "wire", "parameters", "bytes a step",
    "push to result", "why"], status.layers.map((layer) => [text(layer.name), text(layer.scheme), text(layer.wire),
      layer.parameters.toLocaleString("en"), bytes(layer.bytes),
      layer.sync_seconds === null ? "" : time(layer.sync_seconds), text(layer.reason)]));
  if (status.layers_left_out > 0) {
    at("layers").append("and " + status.layers_left_out + " smaller ones");
  }
}

function showCheckpoint(status) {
  const made = status.checkpoint;
  const age = made !== null && made.seconds_since !== null
    ? ", " + time(made.seconds_since) + " ago" : "";
  at("checkpoint").textContent =
    (made === null ? "None yet." : "Newest: round " + made.round + ", " + bytes(made.bytes) + age +
      ".") + (status.checkpoint_failure === "" ? "" : " Failed: " + status.checkpoint_failure) +
    (status.checkpoint_damage === "" ? "" : " Set aside: " + status.checkpoint_damage);
}

function show(status) {
  const health = status.health;
  document.title = health + ": " + status.job + " - Nereus";
  at("job").textContent = "Job " + status.job + ", " + status.state + ", epoch " + status.epoch;
  at("summary").textContent = status.summary;
  at("summary").className = health === "at risk" ? "risk" : health;
  at("line").textContent = status.steps_per_second > 0
    ? status.steps_per_second.toPrecision(3) + " steps a second; layers: " + status.plan : "";
  showStep(status);
  showWorkers(status);
  showServers(status);
  showLayers(status);
  showCheckpoint(status);
  table("events", ["time", "", "event"], [...status.events].reverse().map((event) =>
    ({ marked: event.warning, cells: [event.time, text(event.warning ? "warning" : ""),
      text(event.text)] })));
}

async function refresh() {
  try {
    const answer = await fetch("status.json");
    show(await answer.json());
  } catch (error) {
    document.title = "no answer - Nereus";
    at("summary").className = "bad";
    at("summary").textContent = "The coordinator does not answer: it has ended, or cannot be " +
      "reached. What follows is its last answer.";
  }
  setTimeout(refresh, 2000);
}

refresh();

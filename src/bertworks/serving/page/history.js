// What a run has recorded: the server's answers in, as they come; series for curves out.

// What may be drawn along the axis, and how the record of a step tells it.
const AXES = { step: (record) => record.step, pieces: (record) => record.pieces, seconds: (record) => record.seconds };
// A recorded loss jumps from step to step: the line follows this share of each, or less where there are many.
const FOLLOWS = 0.2;
const SMOOTHED_OVER = 40;

/** The record of one run, growing. */
export class History {
  constructor(name) {
    this.name = name;
    this.told = null;
    this.clear();
  }

  clear() {
    this.steps = [];
    this.heldOut = [];
    this.scores = [];
    this.lastStep = -1;
    this.numNotFinite = 0;
  }

  /** Return after which step the server should tell more. */
  get after() {
    return this.lastStep;
  }

  /** Take an answer of the server. Return false if the run was set back, so that all has to be read again. */
  take(told) {
    this.told = told;
    if (told.step < this.lastStep) {
      this.clear();
      return false;
    }
    for (const record of told.records) {
      const kinds = { step: this.steps, held_out: this.heldOut, score: this.scores };
      kinds[record.kind]?.push(record);
      this.lastStep = Math.max(this.lastStep, record.step);
    }
    return true;
  }

  /** Return the training loss as it was recorded, and smoothed. */
  trainingLoss(axis) {
    const name = this.pieceLoss;
    const raw = this.#points(this.steps, axis, (record) => record.losses[name]);
    return { raw, smooth: smoothed(raw) };
  }

  heldOutLoss(axis) {
    return this.#points(this.heldOut, axis, (record) => record.losses[this.pieceLoss]);
  }

  rate(axis) {
    return this.#points(this.steps, axis, (record) => record.rate);
  }

  /** Return the figures in 0..1 by name: accuracies of a pretraining run, the dev figures of a fine-tuned one. */
  figures(axis) {
    const found = new Map();
    for (const name of ["accuracy", "pair_accuracy"]) {
      const points = this.#points(this.heldOut, axis, (record) => record[name]);
      if (points.length) found.set(name, points);
    }
    const names = new Set(
      this.scores.flatMap((record) => Object.keys(record.figures).map((name) => `${record.split} ${name}`)),
    );
    for (const name of names) {
      const [split, ...rest] = name.split(" ");
      const own = this.scores.filter((record) => record.split === split);
      found.set(
        name,
        this.#points(own, axis, (record) => record.figures[rest.join(" ")]),
      );
    }
    return found;
  }

  /** The first loss is the one over pieces. */
  get pieceLoss() {
    return Object.keys((this.steps[0] ?? this.heldOut[0])?.losses ?? {})[0];
  }

  #points(records, axis, value) {
    const points = [];
    for (const record of records) {
      const [x, y] = [this.#along(record, axis), finite(value(record))];
      if (x !== null && y !== null) points.push([x, y]);
    }
    return points;
  }

  /** A measurement tells no time: it has that of the last step before it. */
  #along(record, axis) {
    if (axis === "step" || record.kind === "step") return AXES[axis](record);
    let [low, high] = [0, this.steps.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle].step <= record.step) low = middle + 1;
      else high = middle;
    }
    return low ? AXES[axis](this.steps[low - 1]) : 0;
  }
}

/** JSON has no word for what is not finite: the record says "nan" or "inf", and that is not drawn. */
function finite(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function smoothed(points) {
  const share = Math.min(FOLLOWS, SMOOTHED_OVER / Math.max(points.length, 1) + 0.02);
  let mean = null;
  return points.map(([x, y], number) => {
    // The first values count fully, else the line would start where the first, highest one is, and lag behind.
    const weight = Math.max(share, 1 / (number + 1));
    mean = mean === null ? y : mean + weight * (y - mean);
    return [x, mean];
  });
}

// The records of a training run: responses of the server in, series for charts out.

// The values of the x axis, from the record of a step.
const X_VALUES = {
  step: (record) => record.step,
  tokens: (record) => record.num_tokens,
  seconds: (record) => record.seconds,
};
// The training loss is smoothed by a moving average with this weight, or a smaller one for many points.
const SMOOTHING_WEIGHT = 0.2;
const SMOOTHING_POINTS = 40;

/** The growing records of one run. */
export class RunHistory {
  constructor(name) {
    this.name = name;
    this.run = null;
    this.clear();
  }

  clear() {
    this.steps = [];
    this.heldOut = [];
    this.scores = [];
    this.lastStep = -1;
  }

  /** Add a response of the server. Returns false if the run went back to a checkpoint: then read all of it again. */
  add(run) {
    this.run = run;
    if (run.step < this.lastStep) {
      this.clear();
      return false;
    }
    for (const record of run.records) {
      const recordsByKind = { step: this.steps, held_out: this.heldOut, score: this.scores };
      recordsByKind[record.kind]?.push(record);
      this.lastStep = Math.max(this.lastStep, record.step);
    }
    return true;
  }

  /** Return the training loss, recorded and smoothed. */
  trainingLoss(axis) {
    const name = this.tokenLoss;
    const raw = this.#points(this.steps, axis, (record) => record.losses[name]);
    return { raw, smooth: movingAverage(raw) };
  }

  /** Return the loss on held-out text; of a fine-tuning run, that on dev. */
  heldOutLoss(axis) {
    if (this.heldOut.length) return this.#points(this.heldOut, axis, (record) => record.losses[this.tokenLoss]);
    const dev = this.scores.filter((record) => record.split === "dev");
    return this.#points(dev, axis, (record) => record.metrics.loss);
  }

  learningRate(axis) {
    return this.#points(this.steps, axis, (record) => record.learning_rate);
  }

  /** Return series by metric: the held-out accuracies of pretraining; of fine-tuning, all metrics but the loss. */
  metrics(axis) {
    const series = new Map();
    for (const name of ["accuracy", "pair_accuracy"]) {
      const points = this.#points(this.heldOut, axis, (record) => record[name]);
      if (points.length) series.set(name, points);
    }
    const names = new Set(
      this.scores.flatMap((record) => Object.keys(record.metrics).map((name) => `${record.split} ${name}`)),
    );
    for (const name of [...names].filter((key) => !key.endsWith(" loss"))) {
      const [split, ...metric] = name.split(" ");
      const records = this.scores.filter((record) => record.split === split);
      series.set(
        name,
        this.#points(records, axis, (record) => record.metrics[metric.join(" ")]),
      );
    }
    return series;
  }

  /** The name of the loss over tokens, which is the first. */
  get tokenLoss() {
    return Object.keys((this.steps[0] ?? this.heldOut[0])?.losses ?? {})[0];
  }

  #points(records, axis, value) {
    const points = [];
    for (const record of records) {
      const [x, y] = [this.#xValue(record, axis), finiteOrNull(value(record))];
      if (x !== null && y !== null) points.push([x, y]);
    }
    return points;
  }

  /** An evaluation has no time of its own: it gets that of the last step before it. */
  #xValue(record, axis) {
    if (axis === "step" || record.kind === "step") return X_VALUES[axis](record);
    let [low, high] = [0, this.steps.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle].step <= record.step) low = middle + 1;
      else high = middle;
    }
    return low ? X_VALUES[axis](this.steps[low - 1]) : 0;
  }
}

/** Records write non-finite numbers as "nan" or "inf", which are not drawn. */
function finiteOrNull(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function movingAverage(points) {
  const minWeight = Math.min(SMOOTHING_WEIGHT, SMOOTHING_POINTS / Math.max(points.length, 1) + 0.02);
  let mean = null;
  return points.map(([x, y], index) => {
    // A plain mean at first: otherwise the average would start at the first, highest loss and lag behind.
    const weight = Math.max(minWeight, 1 / (index + 1));
    mean = mean === null ? y : mean + weight * (y - mean);
    return [x, mean];
  });
}

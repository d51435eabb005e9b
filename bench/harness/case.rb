# frozen_string_literal: true

module Bench
  OURS = "red-candle"

  # A library with the model and the task it has in a case.
  #   worker       its name
  #   label        what the table calls it, by default the same
  #   model        `{kind:, path:, dtype:}`; the path may be a Proc, for what is made on first use
  #   judged       whether a target counts it
  #   check        how its result is compared with ours: `{measure:, ...limits}`; `ours:` and `theirs:` name other
  #                tasks to compare than the one that is timed
  #   environment  what its process gets besides
  Participant = Struct.new(:worker, :label, :model, :task, :judged, :check, :environment, keyword_init: true) do
    def initialize(worker:, label: worker, judged: true, environment: {}, **rest)
      super
    end
  end

  # What a case is to reach.
  #   ratio  how many times better than the best judged peer, at least
  #   aim    what we would like it to be
  #   limit  the most that our own value may be
  Target = Struct.new(:ratio, :aim, :limit, keyword_init: true) do
    # @return [String]
    def to_s
      wanted = ["≥ #{ratio} ×"] if ratio
      wanted ||= ["≤ #{limit}"] if limit
      [*wanted, ("(aim #{aim} ×)" if aim)].compact.join(" ")
    end

    # @return [Boolean]
    def reached?(value, best_ratio)
      (limit.nil? || value <= limit) && (ratio.nil? || (best_ratio && best_ratio >= ratio))
    end
  end

  # What is timed, all participants doing the same, round after round.
  #   unit        "…/s" is `amount` divided by the seconds, "ms" the time itself, "%" Ruby's share of it
  #   amount      how much one run does; :tokens asks our model
  #   references  participants that run once, only to be compared with
  Case = Struct.new(:name, :group, :title, :unit, :amount, :input, :rounds, :repeat, :participants, :references,
                    :target, keyword_init: true) do
    def initialize(amount: 1, rounds: 5, repeat: 1, references: [], **rest)
      super
    end

    def better
      unit.end_with?("/s") ? :higher : :lower
    end
  end

  # What is measured in processes that do nothing else: each of `metrics`
  # (`:import`, `:load`, `:peak`) becomes a row, with its title and target.
  FreshCase = Struct.new(:name, :group, :input, :rounds, :participants, :metrics, keyword_init: true)
  Metric = Struct.new(:kind, :title, :target, keyword_init: true) do
    def unit
      kind == :peak ? "MB" : "ms"
    end

    def better
      :lower
    end
  end
end

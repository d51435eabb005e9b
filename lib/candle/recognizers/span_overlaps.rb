# frozen_string_literal: true

module Candle
  # Which of several spans stay where they overlap, as the library gliner2 decides it. Spans are Hashes with `start:`,
  # `end:` and `score:`.
  #
  # @api private
  module SpanOverlaps
    # `:best` takes the surest first; `:flat` those whose scores add up to most.
    POLICIES = %i[best flat nested longest allow].freeze

    module_function

    # @param spans [Array<Hash>]
    # @param policy [Symbol] one of {POLICIES}
    # @return [Array<Hash>] the surest first
    def resolve(spans, policy)
      return greedy(spans) { |one, other| overlap?(one, other) } if policy == :best

      distinct = ranked(spans).uniq { |span| span.values_at(:start, :end) }
      case policy
      when :allow then distinct
      when :nested then kept(distinct) { |one, other| overlap?(one, other) && !nested?(one, other) }
      when :longest then distinct.reject { |span| distinct.any? { |other| inside?(span, other) } }
      else ranked(heaviest(distinct))
      end
    end

    # Entities of several labels, as {GLiNER#extract} gives them.
    #
    # @param entities [Array<Hash>]
    # @param flat [Boolean]
    # @param multi_label [Boolean]
    # @return [Array<Hash>] in the order of the text
    def of_labels(entities, flat:, multi_label:)
      chosen = greedy(entities) do |one, other|
        same = one.values_at(:start, :end) == other.values_at(:start, :end)
        same ? !multi_label : overlap?(one, other) && (flat || !nested?(one, other))
      end
      chosen.sort_by.with_index { |entity, index| [entity[:start], index] }
    end

    # @return [Array<Hash>] the surest first; of equal ones in their order
    def greedy(spans, &conflict)
      kept(spans.sort_by.with_index { |span, index| [-span[:score], index] }, &conflict)
    end

    def kept(spans)
      spans.each_with_object([]) do |span, kept|
        kept << span unless kept.any? { |other| yield(span, other) }
      end
    end

    def rank(span)
      [-span[:score], span[:start], span[:end]]
    end

    def ranked(spans)
      spans.sort_by.with_index { |span, index| [*rank(span), index] }
    end

    def overlap?(one, other)
      one[:start] < other[:end] && other[:start] < one[:end]
    end

    def nested?(one, other)
      (one[:start] <= other[:start] && other[:end] <= one[:end]) ||
        (other[:start] <= one[:start] && one[:end] <= other[:end])
    end

    # @return [Boolean] whether the other one is longer and holds the first
    def inside?(span, other)
      other[:start] <= span[:start] && span[:end] <= other[:end] &&
        (other[:start] < span[:start] || span[:end] < other[:end])
    end

    # Spans apart from each other whose scores add up to most; of equal sums the one with more spans, then the one with
    # the surer ones. Each entry of `best` is the sum, how many, the last span and the entry before it.
    def heaviest(spans)
      ordered = spans.sort_by { |span| [span[:end], span[:start], -span[:score]] }
      ends = ordered.map { |span| span[:end] }
      best = [[0.0, 0, nil, nil]]
      ordered.each_with_index do |span, index|
        before = best[ends.first(index).bsearch_index { |place| place > span[:start] } || index]
        taken = [before[0] + span[:score], before[1] + 1, span, before]
        best << better(taken, best[index])
      end
      chain(best.last)
    end

    def better(one, other)
      order = one.first(2) <=> other.first(2)
      return order.positive? ? one : other unless order.zero?

      (ranks(one) <=> ranks(other)).negative? ? one : other
    end

    def ranks(entry)
      ranked(chain(entry)).map { |span| rank(span) }
    end

    def chain(entry)
      spans = []
      while entry && entry[2]
        spans << entry[2]
        entry = entry[3]
      end
      spans
    end
  end
end

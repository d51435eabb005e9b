# frozen_string_literal: true

module Bench
  # Whether two workers computed the same. A speed counts only if they did.
  module Comparison
    # What was compared, what came out, what it had to be, and whether it was.
    Verdict = Struct.new(:measure, :value, :limit, :equal, keyword_init: true)

    module_function

    # @param measure [Symbol] the name of one of the methods below
    # @param ours [Object] as the worker answered
    # @param theirs [Object]
    # @return [Verdict]
    def check(measure, ours, theirs, **limits)
      public_send(measure, ours, theirs, **limits)
    end

    # @param ours [String] vectors as f32 in base64
    # @param theirs [String]
    # @param dimension [Integer]
    # @param at_least [Float]
    def cosine(ours, theirs, dimension:, at_least:)
      one, other = [ours, theirs].map { |text| text.unpack1("m").unpack("e*").each_slice(dimension).to_a }
      return differ("cosine", "#{one.size} vectors beside #{other.size}", at_least) unless one.size == other.size

      lowest = one.zip(other).map { |a, b| cosine_of(a, b) }.min
      Verdict.new(measure: "cosine", value: lowest, limit: at_least, equal: lowest >= at_least)
    end

    # @param ours [Array<Float>]
    # @param theirs [Array<Float>]
    # @param within [Float] the greatest difference allowed
    def scores(ours, theirs, within:)
      return differ("difference", "#{ours.size} scores beside #{theirs.size}", within) unless ours.size == theirs.size

      most = ours.zip(theirs).map { |a, b| (a - b).abs }.max
      Verdict.new(measure: "difference", value: most, limit: within, equal: most <= within)
    end

    # @param ours [Array<Array>] for each text `[label, start, end, confidence]` of every entity
    # @param theirs [Array<Array>]
    # @param within [Float] the greatest difference of confidence allowed
    def entities(ours, theirs, within:)
      return differ("entities", "other entities", within) unless places(ours) == places(theirs)

      scores(ours.flatten(1).map(&:last), theirs.flatten(1).map(&:last), within: within)
    end

    # @param ours [Array] whatever must be the same
    # @param theirs [Array]
    # @param at_least [Float] the share of places where both agree
    def agreement(ours, theirs, at_least: 1.0)
      one, other = [ours, theirs].map(&:flatten)
      return differ("agreement", "#{one.size} values beside #{other.size}", at_least) unless one.size == other.size

      share = one.zip(other).count { |a, b| a == b } / one.size.to_f
      Verdict.new(measure: "agreement", value: share, limit: at_least, equal: share >= at_least)
    end

    # @param ours [Array] what was made of each text
    # @param theirs [Array]
    # @param at_least [Float] the share of texts that both made the same of
    def share(ours, theirs, at_least:)
      sizes = [ours.size, theirs.size]
      return differ("texts alike", sizes.join(" texts beside "), at_least) unless sizes.uniq.one?

      alike = ours.zip(theirs).count { |one, other| one == other } / ours.size.to_f
      Verdict.new(measure: "texts alike", value: alike, limit: at_least, equal: alike >= at_least)
    end

    # Greedy answers. One token chosen otherwise changes all that follow, and rounding decides where two are almost
    # equally likely: answers may part there, if both sides find the two tokens that close.
    #
    # @param ours [Array<Array>] for each place `[[token, log probability], ...]`, the likeliest first, which was chosen
    # @param theirs [Array<Array>]
    # @param within [Float] how much likelier than the other's token one's own may be
    def greedy(ours, theirs, within:)
      measure = "log probability where answers part"
      return differ(measure, "#{ours.size} tokens beside #{theirs.size}", within) unless ours.size == theirs.size

      parting = ours.zip(theirs).find { |one, other| one.first.first != other.first.first }
      gaps = parting ? [advantage(*parting), advantage(*parting.reverse)] : [0.0]
      return differ(measure, "a token far from the other's", within) if gaps.include?(nil)

      Verdict.new(measure: measure, value: gaps.max, limit: within, equal: gaps.max <= within)
    end

    # How much likelier one side finds its own token than the other's; nil when that is not among its likeliest.
    def advantage(own, other)
      _, found = own.assoc(other.first.first)
      found && (own.first.last - found)
    end

    # @param ours [Array(Array<Integer>, Array<Float>)] the tokens of a text, and the log probability of each but the
    #   first
    # @param theirs [Array(Array<Integer>, Array<Float>)]
    # @param within [Float] the greatest mean difference allowed
    def logprobs(ours, theirs, within:)
      return differ("log probabilities", "other tokens", within) unless ours.first == theirs.first

      differences = ours.last.compact.zip(theirs.last).map { |a, b| (a - b).abs }
      mean = differences.sum / differences.size
      Verdict.new(measure: "log probabilities", value: mean, limit: within, equal: mean <= within)
    end

    def differ(measure, value, limit)
      Verdict.new(measure: measure, value: value, limit: limit, equal: false)
    end

    def places(lists)
      lists.map { |list| list.map { |entity| entity[0, 3] } }
    end

    def cosine_of(one, other)
      dot, first, second = one.zip(other).reduce([0.0, 0.0, 0.0]) do |(product, a_squared, b_squared), (a, b)|
        [product + (a * b), a_squared + (a * a), b_squared + (b * b)]
      end
      dot / Math.sqrt(first * second)
    end
  end
end

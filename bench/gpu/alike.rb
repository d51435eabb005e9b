# frozen_string_literal: true

module GpuBench
  # How far what is found in images is from what the CPU found in f32: 0 where it is the same, NaN where it can't be
  # compared.
  module Alike
    # What a mask's image is turned into numbers with.
    RAW = { "do_resize" => false, "do_center_crop" => false, "do_normalize" => false, "do_rescale" => false }.freeze

    module_function

    # @return [Float] the share of values that differ
    def share(these, those)
      return Float::NAN if these.size != those.size || those.empty?

      these.zip(those).count { |one, other| one != other }.fdiv(those.size)
    end

    # @param ordered [Boolean] whether each thing must stand where the other list has it
    # @return [Array<Float>] for each of those things how far the score and the edges of its like are off
    def things(these, those, ordered: false)
      return [Float::NAN] if these.size != those.size || !finite?(these)

      left = these.dup
      those.map do |thing|
        like = ordered ? left.first : left.min_by { |other| distance(other, thing) }
        left.delete_at(left.index { |other| other.equal?(like) })
        distance(like, thing)
      end
    end

    # @return [Array<Float>] for each of those parts the share of pixels that differ
    def masks(these, those)
      return [Float::NAN] if these.map { |part| part[:label] } != those.map { |part| part[:label] }

      these.zip(those).map { |one, other| share(pixels(one[:mask]), pixels(other[:mask])) }
    end

    # @param parts [Array<Hash>] which cover an image
    # @return [Array<Integer>] the label of each pixel
    def labels(parts, known)
      planes = parts.to_h { |part| [known.index(part[:label]), pixels(part[:mask])] }
      first = planes.values.first.each_index
      first.map { |at| planes.find { |_, plane| plane[at] }&.first }
    end

    # @return [Array<Boolean>] which pixels of a mask are white
    def pixels(mask)
      mask.prepared(RAW).first.to_a.first.flatten.map { |value| value > 0.5 }
    end

    # @return [Float] 1 for things of different labels
    def distance(one, other)
      return 1.0 if one[:label] != other[:label]

      numbers = [one, other].map { |thing| [thing[:score], *thing[:box]] }
      numbers.transpose.map { |a, b| (a - b).abs }.max
    end

    def finite?(things)
      things.all? { |thing| [thing[:score], *thing[:box]].all?(&:finite?) }
    end

    # @return [Array<Float>] in order; as they are where that has no meaning
    def sorted(numbers)
      numbers.all?(&:finite?) ? numbers.sort : numbers
    end

    # @return [Array<Float>] as parts of the largest; as they are where there is none
    def parts(numbers)
      return numbers unless numbers.all?(&:finite?)

      largest = numbers.map(&:abs).max
      numbers.map { |number| number / largest }
    end
  end
end

# frozen_string_literal: true

require "json"
require "tmpdir"
require_relative "../../spec/support/seeded_models"
require_relative "numbers"

module GpuBench
  # A checkpoint on the CPU in f32, and on the device in each dtype. Who includes it has `@device` and `@results`.
  module Comparison
    # How much farther off than the CPU in the same type a device may be where both are beyond the limit.
    ALIKE = 1.5

    private

    # The worst of the dtypes, each as a share of its limit, is what the record shows.
    #
    # @param limits [Hash{Symbol => Float}] how far results may be off, by dtype
    # @yieldparam path [String]
    # @yieldparam options [Hash] `device:` and `dtype:`
    # @yieldreturn [Object] whose numbers are compared
    def compare(section, name, limits, path)
      expected = yield(path, { device: "cpu", dtype: :f32 })
      offs = limits.to_h do |dtype, _|
        [dtype, Numbers.difference(yield(path, { device: @device, dtype: dtype }), expected)]
      end
      shares = limits.map do |dtype, limit|
        next offs[dtype] / limit unless offs[dtype] > limit

        # Where a rounding decides (a router, a threshold), it does so on the CPU too.
        rounded = Numbers.difference(yield(path, { device: "cpu", dtype: dtype }), expected)
        offs[dtype] / [limit, ALIKE * rounded].max
      end
      note = offs.map { |dtype, off| "#{dtype} #{format("%.0e", off)}" }.join(" ")
      worst = shares.any?(&:nan?) ? Float::NAN : shares.max
      @results.parity(section, name, worst, 1, note: note)
    rescue Candle::Error => e
      @results.fact(section, name, false, note: "#{e.class}: #{e.message}")
    end

    # Loads a model for the block.
    def with(klass, path, options)
      model = klass.from_pretrained(path, **options)
      yield model
    ensure
      model&.close
    end

    # Writes a seeded checkpoint, whose other files lie beside its description, for the block.
    def seeded(folder)
      Dir.mktmpdir("seeded") do |copy|
        FileUtils.cp(Dir[File.join(folder, "*.json")], copy)
        description = JSON.parse(File.read(File.join(folder, "tensors.json")))
        File.binwrite(File.join(copy, "model.safetensors"), SeededModels.safetensors(description))
        yield copy
      end
    end

    # @return [Hash] what the reference said of a fixture
    def record(folder)
      JSON.parse(File.read(File.join(folder, "expected.json"), encoding: "UTF-8"))
    end
  end
end

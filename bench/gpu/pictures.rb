# frozen_string_literal: true

require_relative "comparison"

module GpuBench
  # Every seeded model of images on the CPU in f32, and on the device in each dtype: classifiers, embedders, detectors,
  # segmenters, depth, retrievers, document readers and vision-language models.
  class Pictures
    include Comparison

    FIXTURES = File.expand_path("../../spec/fixtures", __dir__)
    PHOTOS = %w[photo.png flower.png].map { |name| File.join(FIXTURES, "images", name) }.freeze
    # How far scores, components of unit vectors, and boxes and depths as parts of the largest may be off.
    LIMITS = { f32: 1e-3, f16: 0.05, bf16: 0.2 }.freeze
    LOGPROB_LIMITS = { f32: 2e-3, f16: 0.1, bf16: 0.5 }.freeze
    # Of texts and pixels, which are equal or not: random weights leave choices to roundings in 16 bits.
    EXACT = { f32: 0.01 }.freeze
    MOST_TOKENS = 8

    def initialize(device, results)
      @device = device
      @results = results
    end

    def run
      each("seeded_pictures") { |name, folder, expected| picture(name, folder, expected) }
      each("seeded_readers") do |name, folder, _|
        check(name, EXACT, folder) { |path, options| read(path, options) }
      end
      each("seeded_vlms") do |name, folder, expected|
        check(name, LOGPROB_LIMITS, folder) { |path, options| ask(path, options, expected["asked"]) }
      end
    end

    private

    def each(kind)
      root = File.join(FIXTURES, kind)
      Dir.children(root).sort.each { |name| yield(name, File.join(root, name), record(File.join(root, name))) }
    end

    def check(name, limits, folder, &work)
      seeded(folder) { |path| compare("pictures", name, limits, path, &work) }
    end

    def picture(name, folder, expected)
      case expected["kind"]
      when "classifier" then check(name, LIMITS, folder) { |path, options| classified(path, options) }
      when "embedder"
        check(name, LIMITS, folder) { |*given| with(Candle::ImageEmbeddingModel, *given) { |m| m.embed(PHOTOS) } }
      when "depth" then check(name, LIMITS, folder) { |path, options| depths(path, options) }
      when "retriever" then check(name, LIMITS, folder) { |path, options| vectors(path, options) }
      when "detector", "open"
        check(name, LIMITS, folder) { |path, options| things(path, options, expected["labels"]) }
      else segments(name, folder, expected)
      end
    end

    def classified(path, options)
      with(Candle::ImageClassifier, path, options) do |model|
        model.classify(PHOTOS).map { |found| found.sort_by { |entry| entry[:label] } }
      end
    end

    # As parts of the farthest.
    def depths(path, options)
      with(Candle::DepthEstimator, path, options) do |model|
        model.estimate(PHOTOS).map do |found|
          depths = found[:predicted_depth].to_a.flatten
          depths.map { |depth| depth / depths.map(&:abs).max }
        end
      end
    end

    def vectors(path, options)
      with(Candle::LateInteractionModel, path, options) do |model|
        [*model.embed_image(PHOTOS), model.embed_query("what is the lazy dog?")].map(&:to_a)
      end
    end

    # All scores, best first. In 16 bits roundings decide which box stands where.
    def things(path, options, labels)
      with(Candle::ObjectDetector, path, options) do |model|
        PHOTOS.map do |photo|
          found = model.detect(photo, threshold: 0.0, **(labels ? { labels: labels } : {}))
          found.map { |thing| thing[:score] }
        end
      end
    end

    def segments(name, folder, expected)
      check(name, EXACT, folder) do |path, options|
        with(Candle::ImageSegmenter, path, options) do |model|
          prompts = expected["kind"] == "prompted" ? { points: [[40, 30], [5, 5, false]] } : {}
          model.segment(PHOTOS.first, **prompts).map { |part| part[:score] }
        end
      end
    end

    # The characters of the texts.
    def read(path, options)
      with_reader(path, options) do |reader|
        PHOTOS.flat_map { |photo| reader.read(photo, max_length: MOST_TOKENS).to_s.codepoints.map(&:to_f) }
      end
    end

    def with_reader(path, options)
      yield Candle::DocumentReader.from_pretrained(path, **options)
    end

    def ask(path, options, asked)
      with(Candle::VLM, path, options) do |model|
        asked.map do |question|
          images = question["pictures"].map { |name| File.join(FIXTURES, "images", name) }
          parts = images.map { |image| { type: "image", image: image } }
          messages = [{ role: "user", content: [*parts, { type: "text", text: question["question"] }] }]
          model.complete(messages, max_length: 1, temperature: 0.0, logprobs: 1).logprobs.map { |one| one[:logprob] }
        end
      end
    end
  end
end

# frozen_string_literal: true

require_relative "comparison"
require_relative "alike"

module GpuBench
  # Every seeded model of images on the CPU in f32, and on the device in each dtype: classifiers, embedders, pairs,
  # detectors, segmenters, depth, retrievers, document readers and vision-language models.
  class Pictures
    include Comparison

    FIXTURES = File.expand_path("../../spec/fixtures", __dir__)
    KINDS = %w[seeded_pictures seeded_readers seeded_vlms].freeze
    PHOTOS = %w[photo.png flower.png].map { |name| File.join(FIXTURES, "images", name) }.freeze
    # How far scores and components of unit vectors may be off, and depths as parts of the largest.
    LIMITS = { f32: 1e-3, f16: 0.05, bf16: 0.2 }.freeze
    LOGPROB_LIMITS = { f32: 2e-3, f16: 0.1, bf16: 0.5 }.freeze
    # Of boxes as parts of the longer side, and of masks the share of pixels that differ.
    BOX_LIMITS = { f32: 1e-3 }.freeze
    MASK_LIMITS = { f32: 1e-3, f16: 0.05, bf16: 0.2 }.freeze
    # The share of tokens that differ. In 16 bits a rounding decides between two tokens, and so about all behind them:
    # that readers run in bf16 is all that this shows.
    TOKEN_LIMITS = { f32: 1e-6, f16: 0.5, bf16: 1.0 }.freeze
    WRITTEN_LIMITS = { f32: 2e-3 }.freeze
    CPU = { device: "cpu", dtype: :f32 }.freeze
    MOST_TOKENS = 4
    LABELS = ["a tower", "a flower"].freeze
    TEXT = "what is the lazy dog?"
    POINTS = [[40, 30], [5, 5, false]].freeze
    BOXES = [[5, 4, 50, 40], [30, 20, 80, 60]].freeze

    # @return [Array<String>] every fixture, as its folder below spec/fixtures
    def self.names
      KINDS.flat_map { |kind| Dir.children(File.join(FIXTURES, kind)).sort.map { |name| File.join(kind, name) } }
    end

    def initialize(device, results, names: self.class.names)
      @device = device
      @results = results
      @names = names
    end

    def run
      @names.each do |name|
        folder = File.join(FIXTURES, name)
        seeded(folder) { |path| one(name, path, record(folder)) }
      rescue StandardError => e
        @results.fact("pictures", name, false, note: "#{e.class}: #{e.message}")
      end
    end

    private

    def one(name, path, expected)
      case File.dirname(name)
      when "seeded_readers" then read(name, path, expected["cases"])
      when "seeded_vlms" then ask(name, path, expected)
      else picture(name, path, expected)
      end
    end

    def picture(name, path, expected)
      case expected["kind"]
      when "classifier", "embedder" then towers(name, path, expected)
      when "detector", "open" then things(name, path, expected)
      when "segmenter", "masks" then segments(name, path, expected["kind"] == "masks")
      when "prompted" then prompted(name, path)
      when "depth" then near(name, path, LIMITS) { |options| depths(path, options) }
      when "retriever" then near(name, path, LIMITS) { |options| vectors(path, options) }
      when "pair" then near(name, path, LIMITS) { |options| pairs(path, options) }
      else raise ArgumentError, "#{name} is of no known kind"
      end
    end

    def near(name, path, limits, &work)
      compare("pictures", name, limits, path) { |_, options| work.call(options) }
    end

    # What a model says with some options, which is asked once.
    def answers
      Hash.new { |known, options| known[options] = yield(options) }
    end

    def towers(name, path, expected)
      if expected["kind"] == "classifier"
        near(name, path, LIMITS) do |options|
          lists = with(Candle::ImageClassifier, path, options) { |model| model.classify(PHOTOS) }
          lists.map { |found| found.sort_by { |entry| entry[:label] } }
        end
      end
      return unless expected["cases"].all? { |entry| entry["pooled"] }

      near("#{name} vectors", path, LIMITS) do |options|
        with(Candle::ImageEmbeddingModel, path, options) { |model| model.embed(PHOTOS) }
      end
    end

    # As parts of the farthest.
    def depths(path, options)
      with(Candle::DepthEstimator, path, options) do |model|
        model.estimate(PHOTOS).map { |found| Alike.parts(found[:predicted_depth].to_a.flatten) }
      end
    end

    def vectors(path, options)
      with(Candle::LateInteractionModel, path, options) do |model|
        [*model.embed_image(PHOTOS), model.embed_query(TEXT)].map(&:to_a)
      end
    end

    def pairs(path, options)
      with(Candle::CLIP, path, options) do |model|
        scores = model.classify_image(PHOTOS, LABELS).map { |found| found.sort_by { |entry| entry[:label] } }
        [model.embed_text(LABELS), model.embed_image(PHOTOS), scores]
      end
    end

    # All scores, best first; in 16 bits roundings decide which box stands where. In f32 the things themselves, those of
    # a page in the order in which they are read.
    def things(name, path, expected)
      found = answers { |options| detected(path, options, expected["labels"]) }
      near(name, path, LIMITS) do |options|
        found[options].map { |things| Alike.sorted(things.map { |thing| thing[:score] }) }
      end
      ordered = File.basename(name).start_with?("pp_doclayout")
      near("#{name} boxes", path, BOX_LIMITS) do |options|
        found[options].zip(found[CPU]).map { |these, those| Alike.things(these, those, ordered: ordered) }
      end
    end

    # Boxes as parts of the longer side of a photo.
    def detected(path, options, labels)
      lists = with(Candle::ObjectDetector, path, options) do |model|
        model.detect(PHOTOS, threshold: 0.0, **(labels ? { labels: labels } : {}))
      end
      lists.zip(PHOTOS).map do |things, photo|
        longer = Candle::Image.open(photo).size.max
        things.map { |thing| { **thing, box: thing[:box].values.map { |edge| edge.fdiv(longer) } } }
      end
    end

    # The label of every pixel; of models that tell things apart also the things, in f32.
    def segments(name, path, apart)
      found = answers do |options|
        with(Candle::ImageSegmenter, path, options) { |model| segmented(model, apart && options[:dtype] == :f32) }
      end
      near(name, path, MASK_LIMITS) do |options|
        found[options][:labels].zip(found[CPU][:labels]).map { |these, those| Alike.share(these, those) }
      end
      return unless apart

      near("#{name} things", path, MASK_LIMITS.slice(:f32)) do |options|
        found[options][:parts].zip(found[CPU][:parts]).map { |these, those| Alike.masks(these, those) }
      end
    end

    def segmented(model, apart)
      labels = model.segment(PHOTOS).map { |parts| Alike.labels(parts, model.labels) }
      kinds = apart ? %i[instance panoptic] : []
      { labels: labels, parts: kinds.flat_map { |kind| model.segment(PHOTOS, kind: kind, threshold: 0.1) } }
    end

    # Scores of all masks, and the best mask of each prompt.
    def prompted(name, path)
      found = answers do |options|
        with(Candle::ImageSegmenter, path, options) do |model|
          prompts = [{ points: POINTS }, { boxes: BOXES }]
          [true, false].map do |multiple|
            prompts.flat_map { |prompt| model.segment(PHOTOS.first, multiple: multiple, **prompt) }
          end
        end
      end
      near(name, path, LIMITS) { |options| found[options].first.map { |part| part[:score] } }
      near("#{name} masks", path, MASK_LIMITS) { |options| Alike.masks(found[options].last, found[CPU].last) }
    end

    # Tokens by greedy choice, and with beams.
    def read(name, path, cases)
      found = answers do |options|
        with(Candle::DocumentReader::ImageToText, path, options) do |model|
          cases.flat_map { |entry| [1, 3].map { |beams| tokens(model, entry, beams) } }
        end
      end
      near(name, path, TOKEN_LIMITS) do |options|
        found[options].zip(found[CPU]).map { |these, those| Alike.share(these, those) }
      end
    end

    def tokens(model, entry, beams)
      images = Candle::Image.inputs(image(entry["picture"])).first
      model.read(images, prompt: entry["prompt"], max_length: MOST_TOKENS, num_beams: beams).first[1]
    end

    # The likeliest first tokens in every dtype, and in f32 those that follow.
    def ask(name, path, expected)
      asked = [*expected["asked"], *expected["watched"]].map { |question| messages(question) }
      found = answers do |options|
        length = options[:dtype] == :f32 ? MOST_TOKENS : 1
        with(Candle::VLM, path, options) do |model|
          asked.map { |question| model.complete(question, max_length: length, temperature: 0.0, logprobs: 10) }
        end
      end
      near(name, path, LOGPROB_LIMITS) do |options|
        found[options].map { |completion| likeliest(completion.logprobs.first) }
      end
      near("#{name} tokens", path, WRITTEN_LIMITS) do |options|
        found[options].map { |one| [one.token_ids.map(&:to_f), one.logprobs.map { |entry| likeliest(entry) }] }
      end
    end

    def likeliest(entry)
      Alike.sorted(entry[:top].map { |token| token[:logprob] })
    end

    def messages(question)
      parts = if question["frames"]
                frames = question["frames"].map { |name| image(name) }
                [{ type: "video", video: frames, fps: question["fps"] }]
              else
                question["pictures"].map { |name| { type: "image", image: image(name) } }
              end
      [{ role: "user", content: [*parts, { type: "text", text: question["question"] }] }]
    end

    def image(name)
      File.join(FIXTURES, "images", name)
    end
  end
end

# frozen_string_literal: true

require_relative "../../../spec/support/seeded_models"

# Models that read pictures, and how each is asked about one: tiny checkpoints, and seeded ones of every kind.
class HostileImageModels
  TINY = { "clip" => :CLIP, "llava" => :VLM, "dinov2" => :ImageEmbeddingModel,
           "vit-classifier" => :ImageClassifier }.freeze
  # What a fixture expects, and the class for it.
  CLASSES = { "detector" => :ObjectDetector, "open" => :ObjectDetector, "segmenter" => :ImageSegmenter,
              "masks" => :ImageSegmenter, "prompted" => :ImageSegmenter, "depth" => :DepthEstimator,
              "classifier" => :ImageClassifier, "embedder" => :ImageEmbeddingModel,
              "retriever" => :LateInteractionModel, "pair" => :CLIP }.freeze
  LABELS = ["a tower", "a dog"].freeze
  # What configurations of pages say of counts, sizes and orders: where it stands, behind which names.
  PAGES = {
    [] => %w[num_queries num_feature_levels decoder_layers decoder_n_points decoder_attention_heads d_model hidden_size
             feat_strides mask_enhanced learn_initial_query mask_feature_channels num_prototypes x4_feat_dim
             global_pointer_head_size s2r_steps s2r_damping class_order class_thresholds id2label eval_size
             encode_proj_layers],
    ["reading_order_config"] => %w[hidden_size num_attention_heads num_hidden_layers relation_bias_embed_dim
                                   relation_bias_theta relation_bias_scale global_pointer_head_size pad_token_id
                                   start_token_id end_token_id pred_token_id has_spatial_attention_bias],
    ["backbone_config"] => %w[out_features out_indices stage_num_blocks stage_numb_of_layers stage_downsample_strides
                              stem_strides num_channels hidden_sizes]
  }.freeze
  ABSURD = [0, 1, -1, 2, 3, 7, 4096, 4097, 2**16, 2**31, 2**40, 2**62, 0.5, -1e300, 1e300, 1e-320, true, false, "", "x",
            [], {}, [0], [-1], [0] * 5, [1] * 5000, [2**40] * 5, [1e300] * 5, ["stage1"], %w[stage4 stage1],
            [[1]]].freeze

  def initialize(root)
    @root = root
    @all = TINY.map { |name, kind| [name, kind, nil] } + pictures + files + vlms
    @all += names("seeded_readers").map { |name| ["../seeded_readers/#{name}", :DocumentReader, nil] }
  end

  # @return [Array] the folder of a fixture beside the tiny ones, its class, and what it expects
  def pick(mutations) = mutations.pick(mutations.pick(@all.group_by { |_, kind, _| kind }.values))

  # @return [Array<String>] files that may be damaged
  def damageable(folder)
    found = Dir.children(folder).grep(/config\.json\z|\Atokenizer\.json\z|\Ammproj.*\.gguf\z|\.safetensors\z/)
    # Configurations are most of what people write themselves.
    (found.grep(/config/) * 3) + found
  end

  # @return [String] a fixture of pages beside the tiny ones
  def pick_page(mutations)
    mutations.pick(@all.map(&:first).grep(/pp_doclayout/))
  end

  # @return [String] the configuration of pages with absurd, missing or doubled entries
  def pages(text, mutations)
    config = JSON.parse(text)
    mutations.pick([1, 1, 2, 3]).times do
      path, keys = mutations.pick(PAGES.to_a)
      inner = path.empty? ? config : config[path.first]
      next unless inner.is_a?(Hash)

      key = mutations.pick(keys)
      mutations.pick([true, false, false, false]) ? inner.delete(key) : inner[key] = mutations.pick(ABSURD)
    end
    JSON.generate(config)
  end

  # Asks a model about a picture.
  def ask(model, picture, kind)
    case model
    when Candle::VLM then kind == "video" ? watch(model, picture) : model.describe(picture, max_length: 2)
    when Candle::DocumentReader then model.read(picture, max_length: 2)
    when Candle::ObjectDetector then model.detect(picture, threshold: 0.1, labels: kind == "open" ? LABELS : nil)
    when Candle::ImageSegmenter then segment(model, picture, kind)
    when Candle::DepthEstimator then model.estimate(picture)
    when Candle::ImageClassifier then model.classify(picture)
    when Candle::ImageEmbeddingModel then model.embed(picture)
    else model.embed_image(picture)
    end
  end

  # Weights of a seeded fixture are numbers of a stream.
  def self.materialize(folder)
    description = File.join(folder, "tensors.json")
    return unless File.exist?(description)

    bytes = SeededModels.safetensors(JSON.parse(File.read(description)))
    File.binwrite(File.join(folder, "model.safetensors"), bytes)
  end

  private

  def names(folder) = Dir.children(File.join(@root, folder)).sort

  def pictures
    names("seeded_pictures").map do |name|
      expected = JSON.parse(File.read(File.join(@root, "seeded_pictures", name, "expected.json")))
      ["../seeded_pictures/#{name}", CLASSES.fetch(expected["kind"]), expected["kind"]]
    end
  end

  # Those that say how frames are prepared are asked about a video.
  def vlms
    names("seeded_vlms").map do |name|
      video = File.exist?(File.join(@root, "seeded_vlms", name, "video_preprocessor_config.json"))
      ["../seeded_vlms/#{name}", :VLM, video ? "video" : nil]
    end
  end

  # Decoders with the file of a tower.
  def files = names("tiny/gguf-vlms").map { |name| ["gguf-vlms/#{name}", :VLM, nil] }

  def watch(model, picture)
    content = [{ type: "video", video: [picture, picture, picture], fps: 2 }, { type: "text", text: "What happens?" }]
    model.chat([{ role: "user", content: content }], max_length: 2)
  end

  def segment(model, picture, kind)
    case kind
    when "prompted" then model.segment(picture, points: [[40, 30]])
    when "masks" then model.segment(picture, kind: :panoptic, threshold: 0.1)
    else model.segment(picture)
    end
  end
end

# frozen_string_literal: true

require "fileutils"
require_relative "../../spec/support/tiny_folder"

module Tasks
  # What classes for images return, as pictures and as texts, and a page that shows them.
  class Gallery
    ROOT = File.expand_path("../..", __dir__)
    FOLDER = File.join(ROOT, "docs/guides/gallery")
    IMAGES = %w[photo flower].freeze
    # Of texts, in tokens.
    LENGTH = 8
    # What stands in each row, and what is drawn or written.
    ROWS = {
      "`ObjectDetector#detect` with YOLOS" => :boxes,
      "`ObjectDetector#detect` with OWL-ViT and `labels:`" => :named_boxes,
      "`ObjectDetector#detect` with Grounding DINO and `labels:`" => :grounded_boxes,
      "`ImageSegmenter#segment` with SegFormer: the largest part" => :part,
      "`ImageSegmenter#segment` with Mask2Former and `kind: :instance`: the best thing" => :thing,
      "`ImageSegmenter#segment` with SAM and `points:`" => :mask,
      "`ImageSegmenter#segment` with SAM 2 and `points:`" => :second_mask,
      "`DepthEstimator#estimate` with Depth Anything" => :depth,
      "`ImageClassifier#classify` with ViT: the best label" => :label,
      "`CLIP#classify_image` with CLIP and two labels" => :own_label,
      "`DocumentReader#read` with Donut" => :page,
      "`DocumentReader#read` with Florence-2 and `task: :caption`" => :caption,
      "`VLM#describe` with LLaVA" => :answer,
      "`VLM#ask` with Qwen2.5-VL" => :second_answer
    }.freeze
    INTRODUCTION = <<~TEXT
      # Gallery

      What the classes for images return, written by `rake doc:gallery`. The checkpoints are the tiny ones of this
      repository: their weights are random, so that boxes, masks, labels and texts show the form of results and
      nothing of the images. The packages that `rake models` fetches have no real weights of models for images.
      [Images](../images.md) says how each class is called.
    TEXT

    # @return [void]
    def write
      FileUtils.mkdir_p(FOLDER)
      lines = ROWS.map { |title, method| "| #{title} | #{IMAGES.map { |name| cell(name, method) }.join(" | ")} |" }
      header = "| | #{IMAGES.join(" | ")} |\n|---|#{"---|" * IMAGES.size}\n"
      File.write(File.join(FOLDER, "README.md"), "#{INTRODUCTION}\n#{header}#{lines.join("\n")}\n")
    end

    private

    def cell(name, method)
      file = "#{name}-#{method}.png"
      image = Candle::Image.open(File.join(ROOT, "spec/fixtures/images/#{name}.png"))
      found = send(method, image)
      return quoted(found) unless found.is_a?(Candle::Image)

      found.save(File.join(FOLDER, file))
      "![#{name}](#{file})"
    end

    # Whatever a model of random weights writes, in a cell of a table.
    def quoted(found)
      text = found.inspect.gsub(/[|`]/) { |mark| "\\u{#{mark.ord.to_s(16)}}" }
      "`#{text}`"
    end

    def model(kind, folder)
      @models ||= {}
      source = File.join(TinyFolder.path, folder)
      @models[folder] ||= Candle.const_get(kind).from_pretrained(source, device: "cpu")
    end

    def boxes(image)
      image.draw_boxes(model(:ObjectDetector, "yolos").detect(image, threshold: 0.2))
    end

    def named_boxes(image)
      labels = ["a tower", "a flower"]
      image.draw_boxes(model(:ObjectDetector, "owlvit").detect(image, labels: labels, threshold: 0.1).first(5))
    end

    def grounded_boxes(image)
      labels = ["a tower", "a flower"]
      image.draw_boxes(model(:ObjectDetector, "grounding-dino").detect(image, labels: labels, threshold: 0).first(5))
    end

    def thing(image)
      model(:ImageSegmenter, "mask2former").segment(image, kind: :instance, threshold: 0.01).first[:mask]
    end

    def part(image)
      model(:ImageSegmenter, "segformer").segment(image).first[:mask]
    end

    def mask(image, name = "sam")
      middle = image.size.map { |edge| edge / 2 }
      model(:ImageSegmenter, name).segment(image, points: [middle]).first[:mask]
    end

    def second_mask(image)
      mask(image, "sam2")
    end

    def label(image)
      best = model(:ImageClassifier, "vit-classifier").classify(image).first
      best.merge(score: best[:score].round(3))
    end

    def own_label(image)
      found = model(:CLIP, "clip").classify_image(image, %w[tower flower])
      found.map { |one| one.merge(score: one[:score].round(3)) }
    end

    def page(image)
      model(:DocumentReader, "donut").read(image, max_length: LENGTH)
    end

    def caption(image)
      model(:DocumentReader, "florence2").read(image, task: :caption, max_length: LENGTH)
    end

    def answer(image)
      model(:VLM, "llava").describe(image, max_length: LENGTH)
    end

    def second_answer(image)
      model(:VLM, "qwen2.5-vl").ask(image, "What is it?", max_length: LENGTH)
    end

    def depth(image)
      model(:DepthEstimator, "depth_anything").estimate(image)[:depth]
    end
  end
end

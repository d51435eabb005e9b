# frozen_string_literal: true

require "fileutils"

module Tasks
  # Pictures of what detectors, segmenters and depth estimators find, and a page that shows them.
  class Gallery
    ROOT = File.expand_path("../..", __dir__)
    FOLDER = File.join(ROOT, "docs/guides/gallery")
    IMAGES = %w[photo flower].freeze
    # What stands in each row, and what is drawn.
    ROWS = {
      "`ObjectDetector#detect` with YOLOS" => :boxes,
      "`ObjectDetector#detect` with OWL-ViT and `labels:`" => :named_boxes,
      "`ObjectDetector#detect` with Grounding DINO and `labels:`" => :grounded_boxes,
      "`ImageSegmenter#segment` with SegFormer: the largest part" => :part,
      "`ImageSegmenter#segment` with Mask2Former and `kind: :instance`: the best thing" => :thing,
      "`ImageSegmenter#segment` with SAM and `points:`" => :mask,
      "`ImageSegmenter#segment` with SAM 2 and `points:`" => :second_mask,
      "`DepthEstimator#estimate` with Depth Anything" => :depth
    }.freeze
    INTRODUCTION = <<~TEXT
      # Gallery

      What the classes for images return, drawn by `rake doc:gallery`. The checkpoints are the tiny ones of this
      repository: their weights are random, so that boxes, masks and depths show the form of results and nothing of
      the images. [Images](../images.md) says how each class is called.
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
      send(method, image).save(File.join(FOLDER, file))
      "![#{name}](#{file})"
    end

    def model(kind, folder)
      @models ||= {}
      source = File.join(ROOT, "spec/fixtures/tiny", folder)
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

    def depth(image)
      model(:DepthEstimator, "depth_anything").estimate(image)[:depth]
    end
  end
end

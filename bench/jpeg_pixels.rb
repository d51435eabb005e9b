# frozen_string_literal: true

# How far results move if zune-jpeg decoded the files: ruby -Ilib bench/jpeg_pixels.rb [PROGRAM]
# PROGRAM is a build of jpeg_pixels.rs; without one it is built with Cargo, which fetches the crate. Prints the rows of
# docs/internals/written_here.md.

require "candle"
require "fileutils"
require "json"
require "open3"
require "tmpdir"
require_relative "../spec/support/tiny_folder"

# Embeddings and scores of the same pictures, by our decoder and by zune-jpeg.
class JpegPixels
  VERSION = "0.5.15"
  ROOT = File.expand_path("..", __dir__)
  PICTURES = File.join(ROOT, "spec/fixtures/images")
  MODELS = {
    "CLIP, embedding" => [Candle::CLIP, "clip", ->(model, image) { model.embed_image(image) }],
    "SigLIP, embedding" => [Candle::CLIP, "siglip", ->(model, image) { model.embed_image(image) }],
    "SigLIP 2, embedding" => [Candle::CLIP, "siglip2", ->(model, image) { model.embed_image(image) }],
    "ViT, embedding" => [Candle::ImageEmbeddingModel, "vit", ->(model, image) { model.embed(image) }],
    "DINOv2, embedding" => [Candle::ImageEmbeddingModel, "dinov2", ->(model, image) { model.embed(image) }],
    "ViT, score of a label" => [Candle::ImageClassifier, "vit-classifier", ->(model, image) { scores(model, image) }],
    "DINOv2, score of a label" =>
      [Candle::ImageClassifier, "dinov2-classifier", ->(model, image) { scores(model, image) }]
  }.freeze

  def self.scores(model, image)
    model.classify(image).sort_by { |found| found[:label] }.map { |found| found[:score] }
  end

  def initialize(program, directory)
    @program = program || built(directory)
    # Theirs as BMP files, which are not compressed.
    @theirs = files.to_h do |file|
      path = File.join(directory, "#{File.basename(file)}.bmp")
      File.binwrite(path, bitmap(*decoded(file)))
      [file, path]
    end
  end

  # @return [Array<String>] lines of Markdown
  def report
    files.each { |file| raise "#{file} has another size" unless sizes(file).uniq.one? }
    ["#{files.size} files, pixels differ by up to #{files.map { |file| farthest(file) }.max} of 255", "",
     "| tiny checkpoint | largest change | file |", "|---|---|---|",
     *MODELS.map { |name, (type, checkpoint, ask)| row(name, type, checkpoint, ask) }]
  end

  private

  def files
    @files ||= Dir[File.join(PICTURES, "*.jpg")].grep_v(/turned/).sort
  end

  def row(name, type, checkpoint, ask)
    model = type.from_pretrained(File.join(TinyFolder.path, checkpoint), device: "cpu")
    changes = files.to_h do |file|
      results = [file, @theirs.fetch(file)].map { |path| ask.call(model, path) }
      [File.basename(file), change(*results, name.end_with?("embedding"))]
    end
    file, most = changes.max_by(&:last)
    format("| %<name>s | %<most>.1e | %<file>s |", name: name, most: most, file: file).sub("e-0", "e-")
  end

  # Of a score, or of a vector's component relative to its length.
  def change(ours, theirs, is_vector)
    length = is_vector ? Math.sqrt(ours.sum { |value| value * value }) : 1
    ours.zip(theirs).map { |one, other| (one - other).abs }.max / length
  end

  def sizes(file)
    [Candle::Image.open(file).size, Candle::Image.open(@theirs.fetch(file)).size]
  end

  # Pillow's pixels, which ours are.
  def farthest(file)
    @pixels ||= File.binread(File.join(PICTURES, "pixels.safetensors"))
    start = 8 + @pixels.unpack1("Q<")
    from, to = JSON.parse(@pixels[8...start]).fetch(File.basename(file)).fetch("data_offsets")
    ours = @pixels[(start + from)...(start + to)].bytes
    ours.zip(decoded(file).last.bytes).map { |one, other| (one - other).abs }.max
  end

  def decoded(file)
    output, status = Open3.capture2(@program, file, binmode: true)
    raise "#{@program} failed on #{file}" unless status.success?

    width, height, pixels = output.split("\n", 3)
    [Integer(width), Integer(height), pixels]
  end

  # 24 bits for each pixel, the last row first.
  def bitmap(width, height, pixels)
    padding = "\0" * (-3 * width % 4)
    rows = pixels.bytes.each_slice(3 * width).map { |row| row.each_slice(3).flat_map(&:reverse).pack("C*") + padding }
    body = rows.reverse.join
    ["BM", 54 + body.size, 0, 54, 40, width, height, 1, 24, 0, body.size, 0, 0, 0, 0].pack("a2V6v2V6") + body
  end

  def built(directory)
    FileUtils.mkdir_p(File.join(directory, "src"))
    FileUtils.cp(File.join(__dir__, "jpeg_pixels.rs"), File.join(directory, "src/main.rs"))
    File.write(File.join(directory, "Cargo.toml"), <<~TOML)
      [package]
      name = "jpeg_pixels"
      version = "0.0.0"
      edition = "2021"

      [dependencies]
      zune-jpeg = "=#{VERSION}"
    TOML
    target = File.join(directory, "target")
    system({ "CARGO_TARGET_DIR" => target }, "cargo", "build", "--release", chdir: directory, exception: true)
    File.join(target, "release", "jpeg_pixels")
  end
end

Dir.mktmpdir("jpeg-pixels-") { |directory| puts JpegPixels.new(ARGV.first, directory).report }

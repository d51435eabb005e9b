# frozen_string_literal: true

require "digest"
require "json"

# Real photographs against what Pillow reads and what transformers' image processors make of it, number by number
# (spec/fixtures/make_photo_reference.py).
RSpec.describe "Photographs" do
  include_context "with the real model", "scikit-image/photographs"

  reference = JSON.parse(File.read(File.expand_path("../fixtures/photo_reference.json", __dir__)))
  bare = { "image_processor_type" => "CLIPImageProcessor", "do_resize" => false, "do_center_crop" => false,
           "do_rescale" => false, "do_normalize" => false }

  def told(tensor)
    { "shape" => tensor.shape, "sha256" => Digest::SHA256.hexdigest(tensor.to_packed) }
  end

  # A part of a picture as a BMP file.
  def part(pixels, (left, top, right, bottom))
    width = right - left
    height = bottom - top
    rows = pixels.narrow(1, top, height).narrow(2, left, width).permute([1, 2, 0]).to_a.map do |row|
      row.flat_map { |pixel| pixel.reverse.map(&:to_i) }.pack("C*").ljust(((width * 3) + 3) / 4 * 4, "\0")
    end
    body = rows.reverse.join
    ["BM", 54 + body.bytesize, 0, 54, 40, width, height, 1, 24, 0, body.bytesize, 0, 0, 0, 0]
      .pack("A2VVVVVVvvV6") + body
  end

  reference["photographs"].each do |record|
    it "reads and prepares #{record["name"]}#{" at #{record["part"]}" if record["part"]} as the Python processors do" do
      image = Candle::Image.open(File.join(real_path, record["name"]))
      image = Candle::Image.open(part(image.prepared(bare).first, record["part"])) if record["part"]
      expect(told(image.prepared(bare).first)).to eq(record["pixels"])
      record["views"].each do |name, views|
        found = image.prepared(reference["processors"][name]).map { |view| told(view) }
        expect([name, found]).to eq([name, views])
      end
    end
  end
end

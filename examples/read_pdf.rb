# frozen_string_literal: true

# Reads the pages of a PDF file, which poppler's pdftoppm renders.
#
#   ruby examples/read_pdf.rb file.pdf [MODEL]

require "candle"
require "tmpdir"

# Without a file it reads a picture of this repository, with a tiny model that `rake fixtures` writes.
folders = %w[../spec/fixtures ../tmp/fixtures].map { |folder| File.expand_path(folder, __dir__) }
root = folders.find { |folder| File.exist?(File.join(folder, "tiny/trocr/model.safetensors")) } || folders.first
pdf = ARGV.fetch(0, nil)
model = ARGV.fetch(1, pdf ? "PaddlePaddle/PaddleOCR-VL" : File.join(root, "tiny/trocr"))
reader = Candle::DocumentReader.from_pretrained(model)

Dir.mktmpdir do |folder|
  if pdf
    system("pdftoppm", "-r", "150", "-png", pdf, File.join(folder, "page"), exception: true)
    pages = Dir[File.join(folder, "*.png")]
  else
    # Without a file: a picture of this repository.
    pages = [File.join(root, "images/photo.png")]
  end
  pages.sort.each_with_index { |page, index| puts "page #{index + 1}: #{reader.read(page)}" }
end

# frozen_string_literal: true

require "open3"
require "rbconfig"
require "tmpdir"

RSpec.describe Candle::DocumentReader, "in examples/read_pdf.rb" do
  root = File.expand_path("../..", __dir__)
  pages = %w[photo.png flower.png].map { |name| File.join(root, "spec/fixtures/images", name) }

  # Writes a program in the place of poppler's, which takes the same arguments and renders these pages of any file.
  def write_renderer(folder, pages)
    path = File.join(folder, "pdftoppm")
    copies = pages.each.with_index(1).map { |page, number| "cp '#{page}' \"$5-#{number}.png\"" }
    lines = ["#!/bin/sh", '[ "$1 $2 $3 $#" = "-r 150 -png 5" ] && [ -f "$4" ] || exit 3', *copies]
    File.write(path, "#{lines.join("\n")}\n")
    File.chmod(0o755, path)
  end

  def run_example(root, folder, *arguments)
    command = [RbConfig.ruby, "-I", File.join(root, "lib"), File.join(root, "examples/read_pdf.rb"), *arguments]
    Open3.capture3({ "PATH" => "#{folder}:#{ENV.fetch("PATH")}" }, *command)
  end

  it "reads the pages that pdftoppm renders, one after the other" do
    model = TinyModels.path("trocr")
    Dir.mktmpdir do |folder|
      write_renderer(folder, pages)
      pdf = File.join(folder, "file.pdf").tap { |path| File.write(path, "%PDF-1.7\n") }
      output, errors, status = run_example(root, folder, pdf, model)
      expect(status).to be_success, errors
      texts = described_class.from_pretrained(model).read(pages)
      expect(output).to eq(texts.each.with_index(1).map { |text, number| "page #{number}: #{text}\n" }.join)
      expect(run_example(root, folder, File.join(folder, "none.pdf"), model).last).not_to be_success
    end
  end
end

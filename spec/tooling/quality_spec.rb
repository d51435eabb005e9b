# frozen_string_literal: true

require "spec_helper"
require "tmpdir"

require_relative "../../rakelib/support/quality"

RSpec.describe Quality do
  let(:source) { File.join(TinyModels.path("decoders"), "qwen3") }

  it "measures types beside the dense weights" do
    Dir.mktmpdir do |directory|
      text = File.join(directory, "text.txt").tap { |path| File.write(path, "the quick brown fox jumps " * 6) }
      quality = described_class.new(source, text, types: %w[q8_0 q4_0 iq2_xs], tokens: 60, calibration: text,
                                                  llama_cpp: false)
      rows = nil
      expect { rows = quality.run }.to output(/dense.*q8_0.*q4_0 with imatrix/m).to_stdout
      # Types below three bits are measured with an importance matrix alone.
      expect(rows.map { |row| row[:type] })
        .to eq(["dense", "q8_0", "q8_0 with imatrix", "q4_0", "q4_0 with imatrix", "iq2_xs with imatrix"])
      exact, coarse = rows.values_at(1, 3)
      expect(exact[:kl_divergence]).to be_between(0, coarse[:kl_divergence])
      expect(rows.map { |row| row[:tokens] }.uniq.size).to eq(1)
    end
  end

  it "writes each row when it is measured, and takes files that are there" do
    Dir.mktmpdir do |directory|
      text = File.join(directory, "text.txt").tap { |path| File.write(path, "the quick brown fox jumps " * 6) }
      page = File.join(directory, "page.md").tap { |path| File.write(path, "<!-- table -->\n<!-- end -->\n") }
      files = File.join(directory, "files")
      measure = lambda do |*types|
        quality = described_class.new(source, text, types: types, tokens: 60, llama_cpp: false, files: files,
                                                    page: QualityPage.new(page))
        expect { quality.run(write: true) }.to output.to_stdout
      end
      expect { measure.call("q8_0", "q_unknown") }.to raise_error(ArgumentError, /unknown/)
      expect(File.read(page)).to match(/\| dense \|.*\| q8\\_0 \|/m)
      path = File.join(files, "q8_0.gguf")
      expect { measure.call("q8_0") }.not_to(change { File.stat(path).ino })
    end
  end

  it "has a table with its columns in the page" do
    page = File.read(QualityPage::PATH, encoding: "UTF-8")
    expect(page[QualityPage::TABLE]).to include("| #{QualityPage::HEAD.join(" | ")} |")
  end

  describe QualityPage do
    let(:path) { File.join(@directory, "page.md") }

    around do |example|
      Dir.mktmpdir do |directory|
        @directory = directory
        File.write(path, "before\n<!-- table -->\n<!-- end -->\nafter\n")
        example.run
      end
    end

    def publish(note, *rows, date: "2026-01-02")
      described_class.new(path).publish(note, rows, date: date)
      File.readlines(path, chomp: true)
    end

    it "keeps the rows of types that are not measured again" do
      publish("m, 5 predictions of t.", ["dense", "", "9.0", "", "", ""],
              ["q8_0", "2 MB", "9.1", "9.2", "0.1", "90 %"], ["q4_0", "1 MB", "9.5", "9.6", "0.2", "80 %"])
      lines = publish("m, 5 predictions of t.", ["q4_0", "1 MB", "9.4", "", "0.3", "70 %"],
                      ["q5_0", "1 MB", "9.3", "", "0.2", "80 %"], date: "2026-03-04")
      expect(lines).to eq(["before", "<!-- table -->", "m, 5 predictions of t.", "", *lines[4, 2],
                           "| dense |  | 9.0 |  |  |  | 2026-01-02 |",
                           "| q8\\_0 | 2 MB | 9.1 | 9.2 | 0.1 | 90 % | 2026-01-02 |",
                           "| q4\\_0 | 1 MB | 9.4 | 9.6 | 0.3 | 70 % | 2026-03-04 |",
                           "| q5\\_0 | 1 MB | 9.3 |  | 0.2 | 80 % | 2026-03-04 |", "<!-- end -->", "after"])
    end

    it "starts again with another model, and forgets llama.cpp's number of another file" do
      publish("m, 5 predictions of t.", ["q8_0", "2 MB", "9.1", "9.2", "0.1", "90 %"])
      lines = publish("m, 5 predictions of t.", ["q8_0", "3 MB", "9.1", "", "0.1", "90 %"])
      expect(lines).to include("| q8\\_0 | 3 MB | 9.1 |  | 0.1 | 90 % | 2026-01-02 |")
      lines = publish("n, 5 predictions of t.", ["q4_0", "1 MB", "9.5", "", "0.2", "80 %"])
      expect(lines.grep(/q8/)).to be_empty
      expect(lines).to include("n, 5 predictions of t.")
    end
  end
end

# frozen_string_literal: true

require "rexml/document"
require "tempfile"
require "tmpdir"
require_relative "../../bench/harness/limits_document"

RSpec.describe "roofline" do
  # Round numbers: 40 GB/s, 8 T operations of bytes by tiles.
  let(:limits) do
    { "date" => "2026-01-02T00:00:00Z", "threads" => 2, "level" => "amx",
      "reading" => [{ "mebibytes" => 512, "bytes_per_second" => 4e10 },
                    { "mebibytes" => 32, "bytes_per_second" => 6e10 }],
      "operations_per_second" => { "f32_vectors" => 3e11, "int8_vectors" => 1.2e12, "bf16_tiles" => 4e12,
                                   "int8_tiles" => 8e12 },
      "weights" => { "Q4_1" => 100_000_000, "Q8_0" => 150_000_000 } }
  end

  def run_with(values)
    cases = values.map { |name, value| { "name" => name, "values" => { Bench::OURS => { "median" => value } } } }
    { "date" => "2026-01-01T00:00:00Z", "threads" => 2, "machine" => { "processor" => "A" }, "cases" => cases }
  end

  def standing(values)
    Bench::CpuStanding.new(run_with(values), limits).standing
  end

  describe Bench::Workload do
    it "counts the operations of MiniLM" do
      minilm = Bench::CpuStanding::MINILM
      # Per layer four matrices of 384 × 384 and two of 384 × 1536; attention twice 384 × length.
      expect(minilm.weights).to eq(10_616_832)
      expect(minilm.operations(0)).to eq(21_233_664)
      expect(minilm.operations(128) - minilm.operations(0)).to eq(6 * 2 * 2 * 384 * 128)
    end

    it "counts those of SmolLM2, for a step and for a prompt" do
      smollm = Bench::CpuStanding::SMOLLM
      # All of its 134,515,008 parameters but the 61 norms.
      expect(smollm.weights).to eq(134_515_008 - (61 * 576))
      expect(smollm.step(10)).to eq((2 * smollm.weights) + (30 * 4 * 576 * 10))
      expect(smollm.prompt(1)).to eq(smollm.step(1))
      expect(smollm.prompt(2)).to eq((2 * ((2 * smollm.layer_weights) + smollm.head_weights)) + (30 * 4 * 576 * 3))
      expect(smollm.cache(10, 4)).to eq(30 * 2 * 192 * 10 * 4)
    end
  end

  describe Bench::CpuStanding do
    it "puts a step of decoding where its bytes and operations say" do
      point = standing("q4_1_decode" => 200.0).points.first
      bytes = 100_000_000 + (30 * 2 * 192 * 62 * 4)
      expect(point.bytes_per_second).to eq(200.0 * bytes)
      expect(point.intensity).to be_within(1e-9).of(described_class::SMOLLM.step(62) / bytes.to_f)
      expect(point.rate).to eq(200.0 * described_class::SMOLLM.step(62))
      expect(standing("q4_1_decode" => 200.0).share(point)).to be_within(1e-9).of(200.0 * bytes / 4e10)
    end

    it "reads weights once for all that are decoded at once" do
      point = standing("decode_together" => 400.0).points.first
      expect(point.bytes).to eq(100_000_000 + (8 * described_class::SMOLLM.cache(40, 4)))
      expect(point.operations).to eq(8 * described_class::SMOLLM.step(40))
      expect([point.passes, point.roof]).to eq([50.0, 2e12])
    end

    it "holds a text of f32 to an eighth of the bytes' rate, and of its weights' three bytes" do
      all = standing("latency_8" => 2.0, "latency_256" => 25.0)
      short, long = all.points
      expect(short.bytes).to eq(3 * 10_616_832)
      expect(short.rate).to eq(500 * 8 * described_class::MINILM.operations(8))
      expect([short, long].map(&:roof)).to eq([1e12, 1e12])
      expect([short, long].map { |point| all.reads_most?(point) }).to eq([true, false])
      expect(all.share(long)).to be_within(1e-9).of(40 * 256 * described_class::MINILM.operations(256) / 1e12)
    end

    it "gives each kind of work the arithmetic that does it" do
      points = standing("embed_bf16" => 1.0, "embed_int8" => 1.0, "embed_int8_without_amx" => 1.0,
                        "embed_bf16_without_amx" => 1.0, "q8_0_prefill" => 1.0, "q8_0_decode" => 1.0).points
      expect(points.map(&:roof)).to eq([4e12, 8e12, 1.2e12, 3e11, 2e12, 6e11])
      expect(points.first(4).map(&:label)).to eq(["bf16", "int8", "int8 without tiles", "bf16 without tiles"])
    end

    it "takes vectors where there are no tiles" do
      limits["operations_per_second"] = { "f32_vectors" => 3e11 }
      all = standing("embed_f32" => 1.0, "embed_bf16" => 1.0, "latency_8" => 1.0)
      expect(all.points.map(&:roof)).to eq([3e11] * 3)
      expect(all.points.last.bytes).to eq(4 * 10_616_832)
      expect(all.roofs).to eq([{ label: "f32 vectors", rate: 3e11 }])
    end
  end

  describe Bench::Roofline do
    def picture(standing)
      REXML::Document.new(described_class.new(standing).svg)
    end

    it "draws a point where slope and roof are, in the same scales" do
      all = standing("latency_8" => 2.0, "q4_1_decode" => 200.0)
      all.points << Bench::Point.new(name: "ridge", label: "ridge", group: "latency", operations: 200.0, bytes: 1.0,
                                     passes: 4e10, roof: 8e12)
      drawn = picture(all)
      ridge = drawn.get_elements("//circle[@r='4']").last
      slope = drawn.get_elements("//line[@class='slope']").find { |line| line.attributes["y2"].to_f > 80 }
      roof = drawn.get_elements("//line[@class='roof']").first
      expect(%w[cx cy].map { |key| ridge.attributes[key].to_f })
        .to eq(%w[x2 y2].map { |key| slope.attributes[key].to_f })
        .and eq(%w[x1 y1].map { |key| roof.attributes[key].to_f })
    end

    it "is as far from one power of ten to the next, either way" do
      drawn = described_class.new(standing("latency_8" => 2.0, "q4_1_decode" => 200.0))
      first, second, third = [1e10, 1e11, 1e12].map { |rate| drawn.place(10.0, rate).last }
      expect(first - second).to be_within(0.2).of(second - third)
      expect(drawn.place(100.0, 1e10).first).to be > drawn.place(10.0, 1e10).first
    end

    it "refuses a run without such cases" do
      expect { described_class.new(standing("rerank" => 1.0)) }.to raise_error(ArgumentError, /no case/)
    end
  end

  describe Bench::Labels do
    let(:area) { described_class::Box.new(0, 0, 400, 300) }

    it "lays labels of neighbours apart, off points and lines" do
      points = Array.new(6) { |index| [200.0 + (3 * index), 150.0 + (2 * index)] }
      places = described_class.new(area, [[[0, 140], [400, 140]]]).places(points, ["a label"] * 6)
      boxes = places.map(&:box)
      expect(boxes.combination(2).select { |one, other| one.meets?(other) }).to be_empty
      dots = points.map { |left, top| described_class::Box.new(left - 4, top - 4, left + 4, top + 4) }
      expect(boxes.product(dots).select { |box, dot| box.meets?(dot) }).to be_empty
      expect(boxes.select { |box| box.top < 140 && box.bottom > 140 }).to be_empty
    end

    it "says when there is no room" do
      small = described_class::Box.new(0, 0, 20, 20)
      expect { described_class.new(small, []).places([[10, 10]], ["a long label"]) }.to raise_error(/no room/)
    end
  end

  describe Bench::Gguf do
    def header(*tensors)
      text = ->(string) { [string.bytesize].pack("Q<") + string }
      metadata = [text["general.name"], [8].pack("V"), text["x"], text["list"], [9, 8].pack("VV"), [2].pack("Q<"),
                  text["a"], text["bc"], text["count"], [4, 7].pack("VV")].join
      infos = tensors.map { |name, type, shape| text[name] + [shape.size, *shape, type, 0].pack("VQ<#{shape.size}VQ<") }
      ["GGUF", [3].pack("V"), [tensors.size, 3].pack("Q<2"), metadata, *infos].join
    end

    def bytes(*tensors)
      Tempfile.create("gguf") do |file|
        file.binmode
        file.write(header(*tensors))
        file.flush
        described_class.bytes_per_token(file.path)
      end
    end

    it "counts all weights where the table of tokens is the head too" do
      expect(bytes(["token_embd.weight", 8, [64, 10]], ["norm", 0, [64]])).to eq((20 * 34) + 256)
    end

    it "leaves the table out where the head is another" do
      tensors = [["token_embd.weight", 8, [64, 10]], ["output.weight", 14, [256, 10]], ["layer", 3, [32, 4]]]
      expect(bytes(*tensors)).to eq((10 * 210) + (4 * 20))
    end

    it "refuses other files" do
      Tempfile.create("other") do |file|
        file.write("not what is looked for")
        file.flush
        expect { described_class.bytes_per_token(file.path) }.to raise_error(ArgumentError, /no GGUF file/)
      end
    end
  end

  describe Bench::Limits do
    let(:measured) { limits.slice("threads", "level", "reading", "operations_per_second") }

    def update(path, factor)
      allow(described_class).to receive(:measure) do
        measured.merge("reading" => measured["reading"].map { |one| one.merge("bytes_per_second" => factor * 1e9) },
                       "operations_per_second" => { "f32_vectors" => factor * 1e11 })
      end
      Bench::Results.read(described_class.update(threads: 2, path: path))
    end

    before { allow(Bench::Models).to receive(:gguf?).and_return(false) }

    it "keeps the best of a machine, and the sizes of files that are not here" do
      Dir.mktmpdir do |directory|
        path = File.join(directory, "limits.json")
        File.write(path, JSON.generate("weights" => { "Q4_1" => 5 }))
        update(path, 40)
        lower = update(path, 30)
        expect(lower["reading"].map { |one| one["bytes_per_second"] }).to eq([4e10, 4e10])
        expect(lower["operations_per_second"]).to eq("f32_vectors" => 4e12)
        expect(update(path, 50)["reading"].first["bytes_per_second"]).to eq(5e10)
        expect(lower["weights"]).to eq("Q4_1" => 5)
      end
    end

    it "takes another machine's values as they are" do
      Dir.mktmpdir do |directory|
        path = File.join(directory, "limits.json")
        first = update(path, 40)
        File.write(path, JSON.generate(first.merge("machine" => first["machine"].merge("processor" => "another"))))
        expect(update(path, 30)["reading"].first["bytes_per_second"]).to eq(3e10)
      end
    end

    it "measures what the machine does, by the program" do
      found = described_class.measure(1, milliseconds: 20)
      expect(found["threads"]).to eq(1)
      expect(found["reading"].map { |one| one["bytes_per_second"] }).to all(be_between(1e8, 1e13))
      expect(found["operations_per_second"]["f32_vectors"]).to be_between(1e8, 1e13)
    end
  end

  describe Bench::LimitsDocument do
    let(:page) { File.read(Bench::Document::PAGE) }

    def labels(path)
      REXML::Document.new(File.read(path)).get_elements("//text").map(&:text)
    end

    it "shows what is published, in tables and pictures" do
      expect(Bench::Document.insert(page, described_class.section, described_class::MARKERS)).to eq(page)
      expect(File.read(described_class::CPU_PICTURE)).to eq(Bench::Roofline.new(described_class.cpu).svg)
      expect(File.read(described_class::GPU_PICTURE)).to eq(Bench::Roofline.new(described_class.gpu).svg)
    end

    it "draws every published case of the kinds" do
      kinds = /\A(embed_(f32|(bf16|int8)(_without_amx)?)|latency_\d+|q\w+_(prefill|decode)|decode_together)\z/
      published = Bench::Results.read(Bench::Results::PUBLISHED)["cases"].select { |one| one["name"].match?(kinds) }
      measured = published.reject { |one| one["status"] == "FAILED" }.map { |one| one["name"] }
      expect(described_class.cpu.points.map(&:name)).to eq(measured)
      expect(measured.size).to be >= 17
    end

    it "names every case in its picture" do
      { described_class::CPU_PICTURE => described_class.cpu, described_class::GPU_PICTURE => described_class.gpu }
        .each do |path, standing|
          missing = standing.points.map(&:label).tally.reject { |label, count| labels(path).count(label) == count }
          expect(missing).to be_empty
        end
    end

    it "finds on the H200 what its section says of the memory" do
      shares = described_class.gpu.points.to_h { |point| [point.label, described_class.gpu.share(point)] }
      expect(shares.values_at("Llama-8B bf16", "Llama-1B bf16", "Llama-8B Q4_K_M").map { |share| share.round(2) })
        .to eq([0.88, 0.69, 0.56])
      expect(page).to include("88 % of the limit", "69 % of the limit", "56 % of the limit")
    end
  end
end

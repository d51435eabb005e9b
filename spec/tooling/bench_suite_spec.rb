# frozen_string_literal: true

require "tmpdir"
require_relative "../../bench/harness/suite"

RSpec.describe Bench::Suite do
  let(:directory) { Dir.mktmpdir }
  let(:suite) { described_class.new(directory) }

  after { FileUtils.rm_rf(directory) }

  def target(name)
    suite.select([name]).first.target.to_h.compact
  end

  it "has every target as a case" do
    expect(target("embed_f32")).to eq(ratio: 2.0)
    expect(target("embed_bf16")).to eq(ratio: 2.5)
    expect(target("rerank")).to eq(ratio: 1.3)
    expect(%w[latency_8 latency_64 latency_256].map { |name| target(name) }).to all(eq(ratio: 1.5))
    { "prefill" => 2.0, "decode" => 1.8 }.each do |task, ratio|
      targets = %w[q4_1 q4_0 q8_0 q4_k_m q6_k].map { |type| target("#{type}_#{task}") }
      expect(targets).to all(eq(ratio: ratio))
    end
  end

  it "holds our shorter types to our longer ones, with tiles and without" do
    names = %w[embed_int8_beside_bf16 embed_int8_without_amx embed_bf16_without_amx]
    cases = suite.select(names)
    expect(cases.map { |one| one.participants.last.label }).to eq(["our bf16", "our f32", "our f32"])
    expect(cases.map { |one| one.target.ratio }).to eq([1.3, 2.0, 1.0])
  end

  it "has limits for load and require, and the leanest peer's memory for every task" do
    metrics = suite.select(["start"]).first.metrics.to_h { |metric| [metric.kind, metric.target.to_h.compact] }
    expect(metrics).to eq(import: { limit: 150 }, load: { limit: 150 })
    peaks = suite.select(["memory"]).flat_map { |one| one.metrics.select { |metric| metric.kind == :peak } }
    expect(peaks.size).to eq(9)
    expect(peaks.map { |metric| metric.target.ratio }).to all(eq(1.0))
  end

  it "compares every peer's result with ours" do
    timed = suite.cases.grep(Bench::Case)
    expect(timed.flat_map { |one| one.participants.drop(1) + one.references }.map(&:check)).to all(include(:measure))
    expect(timed.map { |one| one.participants.first.worker }.uniq).to eq([Bench::OURS])
  end

  it "lets an encoder-decoder write beside transformers" do
    cases = suite.select(["seq2seq"])
    expect(cases.map(&:name)).to eq(%w[write write_with_beams])
    expect(cases.flat_map { |one| one.participants.map(&:worker) }.uniq).to eq([Bench::OURS, "sentence-transformers"])
    expect(cases.map { |one| one.target.ratio }).to eq([1.0, 1.0])
  end

  it "runs candle-transformers on the same weights" do
    beside = suite.cases.select { |one| one.participants.map(&:worker).include?("candle-transformers") }
    expect(beside.map(&:name)).to eq(%w[embed_f32 latency_8 latency_64 latency_256 q4_1_prefill q4_1_decode
                                        q4_1_first_token])
    beside.each do |one|
      ours, theirs = one.participants.partition { |participant| participant.worker == Bench::OURS }
      theirs = theirs.find { |participant| participant.worker == "candle-transformers" }
      expect([theirs.task, theirs.model[:kind], theirs.model[:dtype]])
        .to eq([ours.first.task, ours.first.model[:kind], ours.first.model[:dtype]])
      expect(theirs.check).to include(:measure)
    end
  end

  it "measures the allocator and huge pages each by itself" do
    cases = suite.select(["settings"])
    expect(cases.map(&:name)).to eq(%w[settings_short settings_middle settings_mixed settings_decode])
    environments = [{}, { "CANDLE_HUGE_PAGES" => "0" }, { "CANDLE_ALLOCATOR" => "system" },
                    { "CANDLE_HUGE_PAGES" => "0", "CANDLE_ALLOCATOR" => "system" }]
    expect(cases.map { |one| one.participants.map(&:environment) }).to all(eq(environments))
    expect(cases.flat_map(&:participants).map(&:worker).uniq).to eq([Bench::OURS])
  end

  it "holds threads at once to one" do
    cases = suite.select(["concurrency"])
    expect(cases.map { |one| one.target.ratio }).to eq([0.95, 0.9, 1.5, 1.0, 0.25, 0.25])
    expect(cases.map { |one| one.participants.map(&:task) })
      .to eq([%w[embed_in_threads embed], %w[embed_singly_in_threads embed_singly],
              *[%w[embed_singly_in_16_threads embed_singly]] * 2, %w[embed_tail_of_16 embed_lone],
              %w[embed_tail_of_16_apart embed_lone_apart]])
    expect(cases.map(&:name).uniq.size).to eq(6)
  end

  it "compares sessions with a common prefix with sessions without one" do
    sessions = suite.select(["memory_sessions"]).first
    expect(sessions.participants.map(&:task)).to eq(%w[idle_sessions idle_sessions_apart])
    expect(sessions.metrics.map { |metric| [metric.kind, metric.target.ratio] }).to eq([[:peak, 2.0]])
    expect(suite.select(["together"])).to include(an_object_having_attributes(name: "memory_sessions"))
  end

  it "holds bf16 and int8 to our own f32" do
    limits = %w[embed_bf16 embed_int8].map { |name| suite.select([name]).first.references.first.check[:at_least] }
    expect(limits).to eq([0.999, 0.99])
  end

  it "selects by group and by name, and names all where it knows none" do
    expect(suite.select(["latency"]).map(&:name)).to eq(%w[latency_8 latency_64 latency_256])
    expect(suite.select(%w[ner rerank]).map(&:name)).to contain_exactly("ner", "rerank")
    message = /no case embedings: groups are embeddings, latency/
    expect { suite.select(["embedings"]) }.to raise_error(described_class::UnknownCase, message)
  end

  it "does less in a quick run" do
    quick = described_class.new(directory, quick: true)
    expect(quick.cases.map(&:rounds)).to all(eq(1))
    expect(quick.select(["llm"]).map(&:name)).to eq(%w[q4_1_prefill q4_1_decode q4_1_first_token])
  end

  describe Bench::Texts do
    it "makes the same texts every time, of 5 to 160 words" do
      texts = described_class.mixed(400)
      expect(texts).to eq(described_class.mixed(400))
      expect(texts.map { |text| text.split.size }).to all(be_between(5, 160))
      expect(described_class.with_names(3)).to all(match(/ flew to /))
    end

    context "with MiniLM's tokenizer" do
      include_context "with the real model", "sentence-transformers/all-MiniLM-L6-v2"

      it "makes texts of exactly as many tokens as asked" do
        tokenizer = Candle::Tokenizer.from_file(File.join(real_path, "tokenizer.json"))
        expect([8, 64, 256].map do |count|
                 tokenizer.with_truncation(512).encode(described_class.of_tokens(count)).size
               end)
          .to eq([8, 64, 256])
      end
    end
  end

  describe Bench::Peers do
    it "builds llama.cpp for what the processor has, without AMX" do
      arguments = described_class.cmake_arguments(flags: %w[avx avx2 fma f16c avx512f avx512_vnni amx_int8])
      expect(arguments).to include("-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=ON",
                                   "-DGGML_AVX512_BF16=OFF", "-DGGML_AMX_INT8=OFF", "-DGGML_AMX_TILE=OFF")
      expect(described_class.cmake_arguments(flags: [])).to eq(["-DLLAVA_BUILD=OFF"])
    end

    it "pins every version" do
      expect(described_class.packages).to all(match(/\A[a-z][a-z\d-]*==[\d.]+\z/))
      expect(described_class.packages.map { |line| line[/\A[a-z-]+/] })
        .to include("torch", "sentence-transformers", "onnxruntime", "llama-cpp-python")
    end

    it "installs once, and again only when something else is wanted" do
      installed = []
      allow(described_class).to receive(:directory).and_return(File.join(directory, "venv"))
      allow(described_class).to receive(:install) do
        installed << described_class.wanted
        FileUtils.mkdir_p(described_class.directory)
        File.write(described_class.stamp, described_class.wanted)
      end
      2.times { described_class.prepare(output: StringIO.new) }
      expect(installed.size).to eq(1)
      allow(described_class).to receive(:wanted).and_return("other versions")
      described_class.prepare(output: StringIO.new)
      expect(installed.last).to eq("other versions")
    end
  end
end

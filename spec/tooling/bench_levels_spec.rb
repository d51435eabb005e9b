# frozen_string_literal: true

require "open3"
require "tmpdir"
require_relative "../../bench/harness/larger"
require_relative "../../bench/harness/levels"

RSpec.describe "benches at a level" do
  let(:directory) { Dir.mktmpdir }
  let(:inputs) { Bench::Texts.write(directory, texts: 3, documents: 1) }

  after { FileUtils.rm_rf(directory) }

  describe Bench::Levels do
    let(:cases) { described_class.new("avx2", inputs).cases }

    it "times one text of each length and many texts, each beside every library" do
      expect(cases.map(&:name)).to eq(%w[latency_8 latency_64 latency_256 embed])
      expect(cases.map { |one| one.target.ratio }).to all(eq(1.3))
      workers = [Bench::OURS, "sentence-transformers", "onnxruntime", "openvino", "ctranslate2", "fastembed"]
      expect(cases.map { |one| one.participants.map(&:worker) }).to all(eq(workers))
      expect(cases.map(&:input)).to eq(inputs.values_at(:short, :middle, :long, :mixed))
    end

    it "limits us by our own variable, and everyone else by what CPUID says" do
      allow(Bench::HiddenCpuid).to receive(:library).and_return("/hidden.so")
      ours, *peers = cases.last.participants
      expect(ours.environment).to eq("CANDLE_CPU_ISA" => "avx2")
      expect(peers.map(&:environment)).to all(eq("LD_PRELOAD" => "/hidden.so", "BENCH_LEVEL" => "avx2"))
      expect(peers.map(&:check)).to all(include(measure: :cosine, at_least: 0.9999))
      expect(cases.last.participants.map { |one| one.model[:dtype] }).to all(eq("f32"))
    end

    it "has the libraries that rake bench compares embeddings with" do
      suite = Bench::Suite.new(directory).select(%w[embed_f32 latency_64])
      expect(suite.map { |one| one.participants.map(&:worker) }).to all(include(*described_class::LIBRARIES))
      paths = suite.flat_map(&:participants).map { |one| one.model[:path] }
      expect(paths).to all(respond_to(:call))
    end

    it "knows a worker for each" do
      scripts = described_class::LIBRARIES.map { |library| Bench::Worker.command(library).last }
      expect(scripts.map { |script| File.exist?(script) }).to all(be(true))
      expect(scripts.uniq.size).to eq(5)
    end
  end

  describe Bench::HiddenCpuid do
    it "has four levels, and names them for another" do
      expect { described_class.environment("avx1024") }
        .to raise_error(ArgumentError, "no level avx1024: avx2, avxvnni, avx512, avx512vnni")
    end

    # The program says what the compiler's own detection finds.
    it "hides from a process what lies above its level", if: Bench::Peers.cpu_flags.include?("cpuid_fault") do
      source = File.join(directory, "found.c")
      File.write(source, <<~C)
        #include <stdio.h>
        int main(void) {
          __builtin_cpu_init();
          printf("%d %d %d", !!__builtin_cpu_supports("avx2"), !!__builtin_cpu_supports("avx512f"),
                 !!__builtin_cpu_supports("avx512vnni"));
        }
      C
      program = File.join(directory, "found")
      system(ENV.fetch("CC", "cc"), "-o", program, source, exception: true)
      allow(Tasks::Build).to receive(:cache_directory).and_return(directory)
      found = described_class::LEVELS.to_h do |level|
        output, status = Open3.capture2(described_class.environment(level), program)
        expect(status).to be_success
        [level, output.split.map(&:to_i)]
      end
      all = Open3.capture2(program).first.split.map(&:to_i)
      expect(found["avx2"]).to eq([all[0], 0, 0])
      expect(found["avxvnni"]).to eq([all[0], 0, 0])
      expect(found["avx512"]).to eq([*all.first(2), 0])
      expect(found["avx512vnni"]).to eq(all)
    end

    it "compiles its library once" do
      allow(Tasks::Build).to receive(:cache_directory).and_return(directory)
      path = described_class.library
      written = File.mtime(path)
      expect([described_class.library, File.mtime(path)]).to eq([path, written])
      File.utime(Time.at(0), Time.at(0), path)
      described_class.library
      expect(File.mtime(path)).to be > Time.at(0)
    end
  end

  describe Bench::Larger do
    let(:larger) { described_class.new(%w[amx avx2], inputs) }
    # Round numbers: 40 GB/s, tiles of 8 T operations of blocks, vectors of 1 T.
    let(:limits) do
      { "reading" => [{ "mebibytes" => 512, "bytes_per_second" => 4e10 }],
        "operations_per_second" => { "f32_vectors" => 3e11, "int8_vectors" => 2e12, "bf16_tiles" => 1.6e13,
                                     "int8_tiles" => 3.2e13 } }
    end

    before { allow(Bench::Peers).to receive(:python).and_return("true") }

    def outcome(name, **values)
      { "name" => name, "title" => "a", "values" => values.to_h { |who, rate| [who.to_s, { "median" => rate }] } }
    end

    def share(line) = line[/(\d+) %/, 1].to_i

    it "reads a prompt, decodes one sequence, and eight" do
      expect(larger.cases.map(&:name)).to eq(%w[larger_prefill larger_decode larger_together])
      expect(larger.cases.map(&:input)).to eq(inputs.values_at(:story, :opening, :openings))
      expect(larger.cases.last.amount).to eq(8 * 64)
      labels = [Bench::OURS, "our avx2", "llama.cpp", "ik_llama.cpp"]
      expect(larger.cases.map { |one| one.participants.map(&:label) }).to all(eq(labels))
      peers = larger.cases.flat_map { |one| one.participants.drop(1) }
      expect(peers.map(&:check)).to all(include(:measure))
    end

    it "goes without llama.cpp where it isn't installed" do
      allow(Bench::Peers).to receive(:python).and_return("false")
      expect(larger.cases.flat_map { |one| one.participants.map(&:worker) }.uniq).to eq([Bench::OURS])
    end

    it "knows the shape of the model" do
      # 1,543,714,304 parameters, without norms and the biases of queries, keys and values.
      expect(described_class::SHAPE.weights).to eq(1_543_714_304 - (57 * 1536) - (28 * (1536 + 512)))
    end

    it "says how much of the memory's rate a sequence and eight take" do
      bytes = 1_000_000_000
      cache = described_class::SHAPE.cache(40, 4)
      lines = larger.shares(outcome("larger_decode", "red-candle": 30.0, "our avx2": 20.0), bytes, limits)
      expect(lines.map { |line| share(line) }).to eq([30, 20].map { |rate| (rate * (bytes + cache) / 4e8).round })
      together = larger.shares(outcome("larger_together", "red-candle": 160.0), bytes, limits).first
      expect(share(together)).to eq((20 * (bytes + (8 * cache)) / 4e8).round)
      expect(together).to end_with("(wanted: 40 %)")
    end

    it "says how much of the arithmetic of its level a prompt takes" do
      operations = described_class::SHAPE.prompt(256) / 256.0
      values = { "red-candle": 1000.0, "our avx2": 100.0, "llama.cpp": 50.0 }
      shares = larger.shares(outcome("larger_prefill", **values), 1, limits).map { |line| share(line) }
      expect(shares).to eq([1000 * operations / 8e12, 100 * operations / 1e12, 50 * operations / 1e12]
                             .map { |part| (100 * part).round })
    end
  end
end

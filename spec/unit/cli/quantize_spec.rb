# frozen_string_literal: true

require "fileutils"
require "json"
require "stringio"
require "tmpdir"

RSpec.describe Candle::CLI do
  source = TinyModels.path("decoders/llama")
  words = "the quick brown fox jumps over the lazy dog and hello world again. "

  # Runs a command line in this process.
  def cli(*arguments, errors: StringIO.new)
    before = [$stdin, $stdout, $stderr]
    $stdin = StringIO.new
    $stdout = StringIO.new
    $stderr = errors
    status = described_class.run(arguments)
    [status, $stdout.string, $stderr.string]
  ensure
    $stdin, $stdout, $stderr = before
  end

  def terminal
    StringIO.new.tap { |io| io.define_singleton_method(:tty?) { true } }
  end

  # The log probabilities that a model gives a text.
  def logprobs(path, text)
    Candle::LLM.from_pretrained(path, device: "cpu").logprobs(text).filter_map { |token| token[:logprob] }
  end

  around { |example| Dir.mktmpdir { |directory| Dir.chdir(directory) { example.run } } }

  before { File.write("text.txt", words * 4) }

  def children = Dir.children(".").sort

  describe "quantize" do
    it "writes what the quantizer writes, and says how large it is" do
      wanted = Candle::Quantizer.quantize(source, to: "wanted.gguf", type: "q8_0")
      status, output, errors = cli("quantize", source, "--type", "q8_0", "-o", "m.gguf")
      expect([status, errors]).to eq([0, ""])
      expect(output).to match(/\Am\.gguf: \d+(\.\d)? kB\n\z/)
      expect(File.binread("m.gguf")).to eq(File.binread(wanted))
    end

    it "answers in JSON with all files of a model in parts" do
      status, output, = cli("quantize", source, "--type", "f32", "-o", "m.gguf", "--shard-size", "20K", "--json")
      said = JSON.parse(output)
      names = Dir.glob("m-*.gguf").sort
      expect(status).to eq(0)
      expect(names.size).to be > 1
      expect(said).to eq("path" => names.first, "files" => names, "bytes" => names.sum { |name| File.size(name) })
      changes = logprobs(names.first, "the quick brown").zip(logprobs(source, "the quick brown")).map { |a, b| a - b }
      expect(changes.map(&:abs).max).to be < 1e-4
    end

    it "draws a bar on a terminal" do
      _, _, errors = cli("quantize", source, "--type", "q8_0", "-o", "m.gguf", errors: terminal)
      count = Candle::Weights.open("m.gguf").names.size
      expect(errors).to match(%r{\r\[#+\] #{count}/#{count} \d+/s\n\z})
    end

    it "says what is wrong, and writes nothing" do
      {
        ["quantize", source, "--type", "q9_9", "-o", "m.gguf"] => [2, /q9_9.*q4_k_m/],
        ["quantize", source, "--type", "iq2_xxs", "-o", "m.gguf"] => [2, /importance matrix/],
        ["quantize", source, "-o", "m.gguf", "--shard-size", "huge"] => [2, /--shard-size.*huge/],
        ["quantize", source, "-o", "m.gguf", "--imatrix", "a.gguf", "--calibration", "text.txt"] => [2, /not both/],
        ["quantize", source, "-o", "m.gguf", "--calibration", "none.txt"] => [3, /none\.txt: no such file/],
        ["quantize", source, "-o", "m.gguf", "--imatrix", "text.txt"] => [1, /text\.txt/],
        ["quantize", "text.txt", "-o", "m.gguf"] => [1, /text\.txt is a file/],
        ["quantize", source] => [2, /--output/]
      }.each do |command, (status, message)|
        expect(cli(*command)).to match([status, "", message])
        expect(children).to eq(["text.txt"])
      end
    end
  end

  describe "imatrix" do
    it "writes a file that quantize takes" do
      status, output, = cli("imatrix", source, "text.txt", "-o", "m.imatrix.gguf", "--context", "16", "--device", "cpu")
      expect([status, output]).to match([0, /\Am\.imatrix\.gguf: /])
      expect(Candle::Weights.open("m.imatrix.gguf").names).to include("blk.0.attn_q.weight.in_sum2")
      expect(cli("quantize", source, "--type", "q4_0", "-o", "with.gguf", "--imatrix", "m.imatrix.gguf").first).to eq(0)
      cli("quantize", source, "--type", "q4_0", "-o", "without.gguf")
      expect(File.size("with.gguf")).to eq(File.size("without.gguf"))
      expect(File.binread("with.gguf")).not_to eq(File.binread("without.gguf"))
    end

    it "measures while it quantizes" do
      cli("imatrix", source, "text.txt", "-o", "m.imatrix.gguf")
      cli("quantize", source, "--type", "q4_0", "-o", "one.gguf", "--imatrix", "m.imatrix.gguf")
      expect(cli("quantize", source, "--type", "q4_0", "-o", "other.gguf", "--calibration", "text.txt").first).to eq(0)
      expect(File.binread("one.gguf")).to eq(File.binread("other.gguf"))
    end

    it "draws a bar on a terminal" do
      _, _, errors = cli("imatrix", source, "text.txt", "-o", "m.gguf", "--context", "8", errors: terminal)
      expect(errors).to match(%r{\[#+\] (\d+)/\1 \d+/s\n\z})
    end

    it "says what is wrong, and writes nothing" do
      File.write("short.txt", "")
      {
        ["imatrix", source, "none.txt", "-o", "m.gguf"] => [3, /none\.txt: no such file/],
        ["imatrix", source, "short.txt", "-o", "m.gguf"] => [1, /less than two tokens/],
        ["imatrix", source, "text.txt", "-o", "m.gguf", "--context", "0"] => [2, /context/],
        ["imatrix", source, "text.txt"] => [2, /--output/]
      }.each do |command, (status, message)|
        expect(cli(*command)).to match([status, "", message])
        expect(children).to eq(%w[short.txt text.txt])
      end
    end
  end

  describe "convert" do
    let(:quantized) { File.expand_path("../../fixtures/quantized/gptq", __dir__) }

    it "writes a directory with dense weights" do
      status, output, = cli("convert", quantized, "-o", "dense", "--dtype", "f32", "--json")
      said = JSON.parse(output)
      expect(status).to eq(0)
      expect(said["files"]).to include("dense/config.json", "dense/model.safetensors")
      expect(said["bytes"]).to eq(said["files"].sum { |file| File.size(file) })
      dense = Candle::Weights.open("dense")
      expect(dense.names.map { |name| dense.info(name)[:dtype] }.uniq).to eq([:f32])
      expect(JSON.parse(File.read("dense/config.json"))).not_to have_key("quantization_config")
      bar = cli("convert", quantized, "-o", "other", errors: terminal).last
      expect(bar).to match(%r{\[#+\] #{dense.names.size}/#{dense.names.size} })
    end

    it "says what is wrong, and replaces nothing" do
      Dir.mkdir("there")
      {
        ["convert", quantized, "-o", "there"] => [2, /there exists already/],
        ["convert", quantized, "-o", "m", "--dtype", "f8"] => [2, /f8|dtype/],
        ["convert", "text.txt", "-o", "m"] => [1, /text\.txt is a file/],
        ["convert", quantized] => [2, /--output/]
      }.each do |command, (status, message)|
        expect(cli(*command)).to match([status, "", message])
        expect(children).to eq(%w[text.txt there])
      end
    end
  end

  describe "perplexity" do
    it "is that of the model" do
      File.write("text.txt", "the quick brown fox jumps")
      command = ["perplexity", source, "text.txt", "--device", "cpu"]
      found = logprobs(source, "the quick brown fox jumps")
      wanted = Math.exp(-found.sum / found.size)
      said = JSON.parse(cli(*command, "--json")[1])
      expect(said).to match("model" => source, "tokens" => found.size, "perplexity" => be_within(1e-6).of(wanted))
      expect(cli(*command)[0, 2]).to eq([0, format("%<source>s: perplexity %<wanted>.4f over %<count>d tokens\n",
                                                   source: source, wanted: wanted, count: found.size)])
    end

    it "compares two models piece by piece" do
      Candle::Quantizer.quantize(source, to: "m.gguf", type: "q4_0")
      context = Candle::LLM.from_pretrained(source, device: "cpu").context_length
      command = ["perplexity", "m.gguf", "text.txt", "--against", source, "--device", "cpu"]
      errors = terminal
      output = cli(*command, "--json", errors: errors)[1]
      said = JSON.parse(output)
      expect(said["tokens"]).to be > context
      expect(said["against"]).to include("model" => source, "tokens" => said["tokens"])
      expect(said["ratio"]).to be_within(1e-9).of(said["perplexity"] / said["against"]["perplexity"])
      expect(said["kl_divergence"]).to be_between(1e-9, 0.5)
      expect(said["max_kl_divergence"]).to be > said["kl_divergence"]
      expect(said["same_token"]).to be_between(0.5, 1)
      # Each piece is read by one model, by the other, and by both.
      total = errors.string[%r{/(\d+) \d+/s\n\z}, 1].to_i
      expect(total).to be > 3
      expect([total % 3, errors.string.scan("/#{total} ").size]).to eq([0, total])
      expect(cli(*command)[1].lines).to match([/m\.gguf: perplexity/, /: perplexity/, /\Aratio/, /\AKL divergence/])
    end

    it "finds no difference between a model and itself" do
      said = JSON.parse(cli("perplexity", source, "text.txt", "--against", source, "--json")[1])
      expect(said).to include("ratio" => 1.0, "mean_change" => 0.0, "same_token" => 1.0)
      expect(said["kl_divergence"]).to be_within(1e-6).of(0)
    end

    # The model with a tokenizer of bytes alone.
    def without_merges(source)
      FileUtils.cp_r(source, "bytes")
      tokenizer = JSON.parse(File.read("bytes/tokenizer.json"))
      tokenizer["model"]["merges"] = []
      File.write("bytes/tokenizer.json", JSON.generate(tokenizer))
      "bytes"
    end

    it "says what is wrong" do
      File.write("short.txt", "")
      File.write("text.txt", "the quick brown fox jumps")
      other = without_merges(source)
      {
        ["perplexity", source, "none.txt"] => [1, /none\.txt/],
        ["perplexity", source, "short.txt"] => [1, /at least two tokens/],
        ["perplexity", source, "text.txt", "--against", other] => [1, /into other tokens/],
        ["perplexity", "text.txt", "text.txt"] => [1, /text\.txt/]
      }.each { |command, (status, message)| expect(cli(*command)).to match([status, "", message]) }
    end
  end
end

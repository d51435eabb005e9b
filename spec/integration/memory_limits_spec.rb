# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

# More memory than there is gives an error, never the end of the process; a limit of addresses is a small machine.
RSpec.describe "Memory that is not there" do
  it "is refused under a limit of address space, and the process goes on" do
    script = <<~RUBY
      Process.setrlimit(Process::RLIMIT_AS, 6_000_000 * 1024)
      row = Candle::Tensor.ones([1, 2**16])
      calls = {
        zeros: -> { Candle::Tensor.zeros([2**31]) },
        ones: -> { Candle::Tensor.ones([2**31]) },
        rand: -> { Candle::Tensor.rand([2**31]) },
        randn: -> { Candle::Tensor.randn([2**31], dtype: :f16) },
        broadcast: -> { row + row.transpose(0, 1) },
        matmul: -> { row.transpose(0, 1).matmul(row) },
        copy: -> { row.broadcast_as([2**15, 2**16]).contiguous },
        cat: -> { Candle::Tensor.cat([row.broadcast_as([2**15, 2**16])] * 2, 0) },
        to_a: -> { row.broadcast_as([2**15, 2**16]).values }
      }
      calls.each do |name, call|
        call.call
        puts "\#{name} was granted"
      rescue Candle::OutOfMemoryError
        next
      end
      puts Candle::Tensor.ones([2, 3]).sum.item
    RUBY
    output, errors, status = run_ruby(script)
    expect([output, status.success?]).to eq(["6.0\n", true]), "#{output}\n#{errors}"
  end

  # A checkpoint whose files allow texts of any length.
  def boundless(name, **sentence_settings)
    Dir.mktmpdir do |folder|
      FileUtils.cp_r("#{TinyModels.path(name)}/.", folder)
      changes = { "config.json" => { max_position_embeddings: 2**30 },
                  "tokenizer_config.json" => { model_max_length: 2**30 },
                  "sentence_bert_config.json" => { max_seq_length: 2**30 },
                  "config_sentence_transformers.json" => sentence_settings }
      changes.each do |file, values|
        path = File.join(folder, file)
        next unless File.exist?(path)

        File.write(path, JSON.generate(JSON.parse(File.read(path)).merge(values.transform_keys(&:to_s))))
      end
      yield folder
    end
  end

  it "is refused where one text would take more", if: File.readable?("/proc/self/statm") do
    boundless("modernbert") do |folder|
      output, errors, status = run_ruby(<<~RUBY)
        require "etc"
        model = Candle::EmbeddingModel.from_pretrained(#{folder.dump}, device: "cpu")
        addresses = File.read("/proc/self/statm").to_i * Etc.sysconf(Etc::SC_PAGESIZE)
        Process.setrlimit(Process::RLIMIT_AS, addresses + (600 << 20))
        [600_000, 2_500_000].each do |count|
          model.embed("a " * count)
        rescue Candle::OutOfMemoryError => e
          puts e.message[/\\Anot enough memory for (.+?):/, 1]
        end
        puts model.embed("fox").size
      RUBY
      expect(output).to eq("1200002 tokens at once\ntokenizing a text of 4.8 MiB\n32\n"), "#{output}\n#{errors}"
      expect(status).to be_success
    end
  end

  it "is refused wherever a count decides how much it takes", if: File.readable?("/proc/self/statm") do
    output, errors, status = run_ruby(<<~RUBY)
      require "etc"
      tiny = ->(type, name) { Candle.const_get(type).from_pretrained(File.join(#{TinyModels::ROOT.dump}, name), device: "cpu") }
      embedder, seq2seq = tiny[:EmbeddingModel, "bert-sentence"], tiny[:Seq2Seq, "seq2seq/t5"]
      embedder.embed(%w[fox dog] * 50)
      seq2seq.generate(%w[fox dog], max_length: 2)
      terms = Array.new(400) { |length| "!" * (length + 1) }
      gazetteer = Candle::GazetteerEntityRecognizer.new("X", terms)
      numbers = [0.5] * 40_000_000
      addresses = File.read("/proc/self/statm").to_i * Etc.sysconf(Etc::SC_PAGESIZE)
      Process.setrlimit(Process::RLIMIT_AS, addresses + (500 << 20))
      { numbers: -> { Candle::Tensor.new(numbers) }, vectors: -> { embedder.embed(["fox"] * 8_000_000, as: :tensor) },
        batch: -> { embedder.tokenizer.encode_batch(["the fox"] * 1_500_000) },
        beams: -> { seq2seq.generate(["fox"] * 32, num_beams: 256, max_length: 200) },
        terms: -> { gazetteer.recognize("!" * 500_000) } }.each do |name, call|
        call.call
        puts "\#{name} was granted"
      rescue Candle::OutOfMemoryError => e
        puts "\#{name}: \#{e.message[/\\Anot enough memory for ([^:\\d]+)/, 1]}"
      end
      puts embedder.embed("fox").size
    RUBY
    expect(output).to eq(<<~TEXT), errors
      numbers: the numbers of a tensor
      vectors:#{" "}
      batch: the tokens of#{" "}
      beams: the keys and values of the texts
      terms: the terms that are found in a text
      32
    TEXT
    expect(status).to be_success
  end

  it "is refused where a checkpoint fills queries up to a length beyond all memory" do
    boundless("colbert-modernbert", query_length: 2**30) do |folder|
      output, errors, = run_ruby(<<~RUBY)
        model = Candle::LateInteractionModel.from_pretrained(#{folder.dump}, device: "cpu")
        begin
          model.embed_query(["fox"] * 4000)
        rescue Candle::OutOfMemoryError => e
          puts e.message
        end
        p model.embed_document("fox").shape.last
      RUBY
      expect(output).to match(/\Anot enough memory for queries that are filled up to 1073741824 tokens: .*\n\d+\n\z/),
                        errors
    end
  end
end

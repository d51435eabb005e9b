# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

# Memory over many loads and over forks, and files that change under a loaded model.
RSpec.describe "A long life", if: File.readable?("/proc/self/smaps_rollup") do
  figures = <<~RUBY
    def figures
      text = File.read("/proc/self/smaps_rollup")
      kilobytes = ->(name) { text[/^\#{name}:\\s+(\\d+)/, 1].to_i }
      { rss: kilobytes.call("Rss"), pss: kilobytes.call("Pss"),
        private: kilobytes.call("Private_Clean") + kilobytes.call("Private_Dirty") }
    end
  RUBY

  # @return [Object] what the script's last line says, which is Ruby
  def result_of(script)
    output, errors, status = run_ruby(script)
    expect(status).to be_success, errors
    JSON.parse(output, symbolize_names: true)
  end

  it "keeps the memory of 500 loads of a tiny encoder flat" do
    marks = result_of(figures + <<~RUBY)
      marks = Array.new(5) do
        100.times do
          model = Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert-sentence").dump}, device: "cpu")
          model.embed("fox")
          model.close
        end
        GC.start
        figures[:rss]
      end
      puts JSON.generate(marks)
    RUBY
    expect(marks.last - marks.first).to be < 2048
  end

  it "keeps no more of a hundred closed models than of the hundred before them" do
    rounds = result_of(figures + <<~RUBY)
      rounds = Array.new(4) do
        models = Array.new(100) do
          model = Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert").dump}, device: "cpu")
          model.tap { model.embed("fox") }
        end
        models.each(&:close)
        models.clear
        GC.start
        figures[:rss]
      end
      puts JSON.generate(rounds)
    RUBY
    expect(rounds.last - rounds.first).to be < 2048
  end

  it "gives a model's memory back when it is closed, whichever model was loaded beside it" do
    bare, all, small, none = result_of(figures + <<~RUBY)
      load = ->(path) { Candle::EmbeddingModel.from_pretrained(path, device: "cpu").tap { |model| model.embed("fox") } }
      marks = [figures[:rss]]
      mark = lambda do
        GC.start
        marks << figures[:rss]
      end
      pairs = Array.new(4) do
        [load.call(#{RealModels.path("sentence-transformers/all-MiniLM-L6-v2").dump}),
         load.call(#{TinyModels.path("bert").dump})]
      end
      mark.call
      pairs.each { |large, _| large.close }
      mark.call
      pairs.each { |_, tiny| tiny.embed("fox").then { tiny.close } }
      mark.call
      puts JSON.generate(marks)
    RUBY
    expect(all - bare).to be > 300 * 1024
    # A tiny model keeps at most the two huge pages that it reaches into.
    expect(small - bare).to be < 56 * 1024
    expect(none - bare).to be < 40 * 1024
  end

  it "costs a worker that only requires it, and one that shares a model, little" do
    bare, loaded, worker = result_of(figures + <<~RUBY)
      bare = figures
      model = Candle::EmbeddingModel.from_pretrained(#{RealModels.path("sentence-transformers/all-MiniLM-L6-v2").dump},
                                                     device: "cpu")
      model.embed("warm")
      loaded = figures
      reader, writer = IO.pipe
      child = fork do
        model.embed("the fox")
        writer.write(JSON.generate(figures))
        exit!
      end
      writer.close
      worker = JSON.parse(reader.read)
      Process.wait(child)
      puts JSON.generate([bare, loaded, worker])
    RUBY
    expect(bare[:rss]).to be < 80 * 1024
    expect(loaded[:rss] - bare[:rss]).to be > 80 * 1024
    expect(worker[:private]).to be < 24 * 1024
    # The weights count half for each of the two processes that have them.
    expect(worker[:pss]).to be < (loaded[:rss] / 2) + (24 * 1024)
  end

  it "tells of a file that was shortened while it was open, and goes on" do
    Dir.mktmpdir do |folder|
      path = File.join(folder, "model.gguf")
      FileUtils.cp(Dir[File.join(TinyModels.path("gguf-decoders/llama"), "*.gguf")].min, path)
      read, text, same = result_of(<<~RUBY)
        weights = Candle::Weights.open(#{path.dump})
        llm = Candle::LLM.from_pretrained(#{path.dump}, device: "cpu")
        greedy = Candle::GenerationConfig.deterministic(max_length: 4)
        before = llm.generate("the dog", config: greedy)
        File.truncate(#{path.dump}, 100)
        error = begin
          weights.tensor(weights.names.last)
        rescue Candle::CorruptModelError => e
          e.message
        end
        puts JSON.generate([error, "goes on", llm.generate("the dog", config: greedy) == before])
      RUBY
      expect(read).to match(/model\.gguf.*shortened while it was open/)
      expect([text, same]).to eq(["goes on", true])
    end
  end
end

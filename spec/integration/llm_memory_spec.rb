# frozen_string_literal: true

# What a run needs is gone after it: 16 KiB kept by each run would show.
RSpec.describe "The memory of language models", if: File.readable?("/proc/self/status") do
  measure = <<~RUBY
    def resident
      GC.start
      File.read("/proc/self/status")[/VmRSS:\\s+(\\d+)/, 1].to_i / 1024.0
    end
    llm = Candle::LLM.from_pretrained(#{TinyModels.path("gguf-decoders/llama").inspect}, device: "cpu")
    short = Candle::GenerationConfig.new(max_length: 4, seed: 1)
  RUBY

  # @return [Float] by how many MiB the process grew
  def growth(script)
    output, errors, status = run_ruby(script)
    expect(status).to be_success, errors
    output.to_f
  end

  it "returns to its level after 1,000 generations" do
    grown = growth(<<~RUBY)
      #{measure}
      work = lambda do |count|
        count.times do |index|
          case index % 4
          when 0 then llm.generate("the dog", config: short)
          when 1 then llm.generate_stream("the dog \#{index}", config: short) { break if index.even? }
          when 2 then llm.generate("the dog", config: short, reset_cache: false)
          else llm.session.say("dog", config: short)
          end
        end
      end
      work.call(1000)
      before = resident
      work.call(1000)
      puts resident - before
    RUBY
    expect(grown).to be < 16
  end
end

# frozen_string_literal: true

# Threads cost nothing between calls, and there are as many as the process may use.
RSpec.describe "Idle threads" do
  # @return [Float] seconds of processor time that half a second of idling took, right after some calls
  def idle_cost(threads)
    output, errors, status = run_ruby(<<~RUBY, { "CANDLE_NUM_THREADS" => threads.to_s })
      encoder = Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert-sentence").dump}, device: "cpu")
      decoder = Candle::LLM.from_pretrained(#{TinyModels.path("decoders/llama").dump}, device: "cpu")
      processor = -> { Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) }
      GC.disable
      5.times { encoder.embed("the quick brown fox jumps over the lazy dog " * 10) }
      decoder.generate("the quick", temperature: 0, max_length: 5)
      before = processor.call
      sleep 0.5
      puts processor.call - before
    RUBY
    expect(status).to be_success, errors
    output.to_f
  end

  # Each may spin for 200 microseconds after a call.
  [1, 2, 16, 64].each do |threads|
    it "use no processor after a call (#{threads})" do
      expect(Array.new(3) { idle_cost(threads) }.min).to be < 0.005 + (0.000_3 * threads)
    end
  end

  it "are as many as the process may use processors", if: system("which taskset", out: File::NULL, err: File::NULL) do
    script = "#{RbConfig.ruby} -Ilib -r candle -e 'puts Candle::Utils.get_num_threads'"
    environment = { "CANDLE_NUM_THREADS" => nil, "RAYON_NUM_THREADS" => nil }
    count = IO.popen(environment, "taskset --cpu-list 0 #{script}", chdir: File.expand_path("../..", __dir__), &:read)
    expect(count.to_i).to eq(1)
  end

  # A thread that spins may have the processor that the leader needs.
  it "do not slow a call down where they are many more than the processors" do
    cost = lambda do |threads|
      output, errors, status = run_ruby(<<~RUBY, { "CANDLE_NUM_THREADS" => threads.to_s })
        model = Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert-sentence").dump}, device: "cpu")
        text = "the quick brown fox jumps over the lazy dog " * 20
        times = Array.new(30) do
          started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
          model.embed(text)
          Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
        end
        puts times.sort[10]
      RUBY
      expect(status).to be_success, errors
      output.to_f
    end
    usual, many = [Etc.nprocessors, 64].map { |threads| Array.new(2) { cost.call(threads) }.min }
    expect(many).to be < 10 * usual
  end
end

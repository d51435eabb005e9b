# frozen_string_literal: true

# Ruby forbids huge pages to its process; weights and large buffers ask for them.
RSpec.describe "Huge pages" do
  setting = "/sys/kernel/mm/transparent_hugepage/enabled"
  on_request = File.exist?(setting) && File.read(setting).include?("[madvise]")

  def huge_kilobytes(work, environment = {})
    script = "#{work}\nputs File.read('/proc/self/smaps_rollup')[/AnonHugePages: +(\\d+)/, 1]"
    output, errors, status = run_ruby(script, environment)
    raise errors unless status.success?

    Integer(output)
  end

  def embedding
    model = "Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert-sentence").inspect}, device: 'cpu')"
    "model = #{model}; model.embed('a text')"
  end

  it "hold the weights of a model where the machine gives them to who asks", if: on_request do
    expect(huge_kilobytes(embedding)).to be > 0
  end

  it "do not hold what Ruby itself has", if: on_request do
    expect(huge_kilobytes("texts = Array.new(400_000) { |i| \"text \#{i}\" }; texts.size")).to eq(0)
  end

  it "are left alone with CANDLE_HUGE_PAGES=0", if: on_request do
    expect(huge_kilobytes(embedding, "CANDLE_HUGE_PAGES" => "0")).to eq(0)
    expect(huge_kilobytes(embedding, "CANDLE_HUGE_PAGES" => "1")).to be > 0
  end

  # The setting of huge pages, the threads and the environment of a process.
  state = "$VERBOSE = nil; puts [syscall(157, 42, 0, 0, 0, 0), Dir.children('/proc/self/task').size, ENV.to_h].inspect"

  it "and everything else stay as they were until a model is loaded", if: RUBY_PLATFORM.include?("x86_64-linux") do
    [{}, { "CANDLE_NUM_THREADS" => "3" }].each do |environment|
      bare, = Open3.capture2e(environment, RbConfig.ruby, "-W0", "-e", state)
      required, = run_ruby(state, environment)
      expect(required).to eq(bare)
    end
    next unless on_request

    loaded, = run_ruby("#{embedding}; #{state}")
    expect(loaded).not_to eq(run_ruby(state).first)
  end

  # prctl(PR_GET_THP_DISABLE): what Ruby set at its start, or what we made of it.
  it "leave the process as Ruby set it up with CANDLE_HUGE_PAGES=0", if: RUBY_PLATFORM.include?("x86_64-linux") do
    thp_disable = "puts syscall(157, 42, 0, 0, 0, 0)"
    bare, = Open3.capture2e(RbConfig.ruby, "-W0", "-e", thp_disable)
    switched_off, = run_ruby("$VERBOSE = nil\n#{thp_disable}", { "CANDLE_HUGE_PAGES" => "0" })
    expect(switched_off).to eq(bare)
  end
end

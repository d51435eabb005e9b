# frozen_string_literal: true

# Ruby forbids huge pages to its process; weights and large buffers ask for them.
RSpec.describe "Huge pages" do
  setting = "/sys/kernel/mm/transparent_hugepage/enabled"
  on_request = File.exist?(setting) && File.read(setting).include?("[madvise]")

  def huge_kilobytes(work)
    script = "#{work}\nputs File.read('/proc/self/smaps_rollup')[/AnonHugePages: +(\\d+)/, 1]"
    output, errors, status = run_ruby(script)
    raise errors unless status.success?

    Integer(output)
  end

  it "hold the weights of a model where the machine gives them to who asks", if: on_request do
    model = "Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert-sentence").inspect}, device: 'cpu')"
    expect(huge_kilobytes("model = #{model}; model.embed('a text')")).to be > 0
  end

  it "do not hold what Ruby itself has", if: on_request do
    expect(huge_kilobytes("texts = Array.new(400_000) { |i| \"text \#{i}\" }; texts.size")).to eq(0)
  end
end

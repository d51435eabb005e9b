# frozen_string_literal: true

require "json"

# Every operation, type and awkward shape against numpy's results, see make_tensor_reference.py.
RSpec.describe Candle::Tensor do
  path = File.expand_path("../fixtures/tensor_reference.json", __dir__)
  cases = JSON.parse(File.read(path), symbolize_names: true)
  special = { "nan" => Float::NAN, "inf" => Float::INFINITY, "-inf" => -Float::INFINITY }
  # Relative to the greater of 1 and the result: what rounding once or a short sum may cost.
  tolerance = { "f64" => 1e-12, "f32" => 2e-6, "f16" => 1e-3, "bf16" => 8e-3 }

  numbers = ->(dump) { dump[:values].map { |value| special.fetch(value, value) } }

  # The same elements in each way that memory can hold them.
  layouts = {
    "in order" => ->(tensor) { tensor },
    "transposed" => lambda { |tensor|
      reversed = (0...tensor.rank).to_a.reverse
      tensor.permute(reversed).contiguous.permute(reversed)
    },
    "as a part" => lambda { |tensor|
      next described_class.stack([tensor, tensor])[1] if tensor.rank.zero?

      width = tensor.shape.last
      tensor.cat(tensor, -1).narrow(-1, width, width)
    }
  }

  define_method(:same) do |actual, wanted, dtype|
    next true if actual == wanted || (wanted.is_a?(Float) && wanted.nan? && actual.nan?)
    next false if wanted.is_a?(Integer) && !tolerance.key?(dtype)
    next false unless wanted.to_f.finite? && actual.to_f.finite?

    (actual - wanted).abs <= tolerance.fetch(dtype) * [1, wanted.abs].max
  end

  cases.group_by { |entry| entry[:call] }.each do |call, group|
    layouts.each do |layout, arrange|
      it "computes #{call} of tensors #{layout} as numpy does" do
        group.each do |entry|
          inputs = entry[:inputs].map do |dump|
            flat = described_class.new(numbers.call(dump), dump[:dtype])
            arrange.call(flat.reshape(dump[:shape]))
          end
          result = inputs.first.public_send(call, *inputs.drop(1), *entry[:arguments])
          wanted = entry[:result]

          expect([entry[:name], result.shape, result.dtype.to_s]).to eq([entry[:name], wanted[:shape], wanted[:dtype]])
          pairs = result.values.zip(numbers.call(wanted))
          wrong = pairs.reject { |actual, value| same(actual, value, wanted[:dtype]) }
          expect(wrong).to be_empty, "#{entry[:name]}: [actual, wanted] = #{wrong.first(5)}"
        end
      end
    end
  end

  it "has reference cases for every numeric operation" do
    expected = %w[sin cos tanh log exp sqr sqrt recip abs neg relu gelu silu sigmoid softmax powf mean sum var norm
                  + - * / eq ne lt le gt ge matmul where_cond index_select gather argmax_keepdim argmin_keepdim
                  max_keepdim min_keepdim argmax layer_norm rms_norm]
    expect(cases.map { |entry| entry[:call] }.uniq).to match_array(expected)
  end
end

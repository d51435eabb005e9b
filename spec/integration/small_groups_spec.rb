# frozen_string_literal: true

require "spec_helper"
require "support/small_groups"
require "tmpdir"

# A scale and a minimum for eight weights would take twelve bits for each weight of four: such groups are expanded.
RSpec.describe "Groups of eight weights" do
  around do |example|
    Dir.mktmpdir do |directory|
      @directory = directory
      example.run
    end
  end

  let(:dense) { SmallGroups.dense(File.join(@directory, "dense")) }

  def model(path)
    llm = Candle::LLM.from_pretrained(path, device: "cpu", dtype: "f32")
    [llm.logprobs("the quick brown fox jumps").filter_map { |one| one[:logprob] }, llm.device_report[:kernels]]
  end

  SmallGroups::CONFIGS.each_key do |name|
    it "are expanded, as device_report says: #{name}" do
      path = SmallGroups.write(name, File.join(@directory, name))
      one, other = [path, dense].map { |from| Candle::Weights.open(from) }
      matrices = other.names.grep(SmallGroups::MATRIX)
      expect(matrices.size).to eq(14)
      packed = ->(weights, matrix) { weights.tensor(matrix, device: "cpu", dtype: :f32).to_packed }
      expect(matrices.reject { |matrix| packed[one, matrix] == packed[other, matrix] }).to eq([])
      (found, kernels), (wanted, plain) = [path, dense].map { |from| model(from) }
      expect(kernels["expanded_weights"]).to eq("#{SmallGroups::FORMATS.fetch(name, name)} as f32")
      expect(plain["expanded_weights"]).to be_nil
      expect(found.size).to be > 3
      expect(found.zip(wanted).map { |a, b| (a - b).abs }.max).to be < 1e-5
    end
  end
end

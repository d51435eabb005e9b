# frozen_string_literal: true

require "bigdecimal"

# Numbers that no dimension, index, size or element can be: each gives a result or an error that says so.
RSpec.describe Candle::Tensor do
  # What a caller is told; Ruby's own RangeError and FloatDomainError name no argument.
  known = [Candle::Error, ArgumentError, TypeError]
  odd = [2**64, 2**70, -(2**70), 10**400, Float::NAN, Float::INFINITY, -Float::INFINITY, 1e300, 1.5, 3r, -(2**63),
         (2**63) - 1, Complex(1, 2), BigDecimal("NaN"), BigDecimal("1e400"), BigDecimal("Infinity")]
  odd += odd.map { |number| [number] } + odd.map { |number| [[number, 0]] }
  signatures = File.read(File.expand_path("../../sig/candle/tensor.rbs", __dir__))
  names = signatures.scan(/^    (?:def|alias) (?:self\.)?(\S+?):? /).flatten.uniq
  own = names.map(&:to_sym).select { |name| described_class.public_method_defined?(name) }
  of_class = %i[new zeros ones rand randn from_packed cat stack]

  def calls(receiver, method, odd)
    called = receiver.method(method)
    required = called.arity.negative? ? -called.arity - 1 : called.arity
    most = called.parameters.count { |kind, _| %i[req opt].include?(kind) }
    most = [most, 2].max if called.parameters.any? { |kind, _| kind == :rest }
    (1..most).to_a.product(odd).flat_map do |count, number|
      next [] if count < required

      usual = [described_class.new([1.0, 2.0]), *[0] * count].first(count)
      (0...count).map { |at| usual.dup.tap { |arguments| arguments[at] = number } }
    end
  end

  def outcome(receiver, method, arguments, known)
    receiver.public_send(method, *arguments)
    nil
  rescue *known
    nil
  rescue StandardError => e
    "#{method}(#{arguments.map(&:inspect).join(", ")[0, 80]}): #{e.class}: #{e.message[0, 60]}"
  end

  it "has the methods that are tried" do
    expect(own.size).to be > 60
    expect(of_class).to all(satisfy { |name| described_class.respond_to?(name) })
  end

  own.each do |name|
    it "takes odd numbers in #{name} or says what is wrong" do
      receivers = [described_class.new([[1.0, 2.0], [3.0, 4.0]]), described_class.new([1, 2], :i64)]
      unclear = receivers.flat_map do |receiver|
        calls(receiver, name, odd).filter_map { |arguments| outcome(receiver, name, arguments, known) }
      end
      expect(unclear).to be_empty
    end
  end

  of_class.each do |name|
    it "takes odd numbers in .#{name} or says what is wrong" do
      unclear = calls(described_class, name, odd).filter_map do |arguments|
        outcome(described_class, name, arguments, known)
      end
      expect(unclear).to be_empty
    end
  end

  it "has no Integer of what is none" do
    [Float::NAN, Float::INFINITY].each do |number|
      expect { described_class.new([number]).to_i }.to raise_error(Candle::InvalidInputError, /can't be an Integer/)
    end
  end

  it "takes no Range without an end" do
    [1.., 1..Float::INFINITY].each do |endless|
      expect { described_class.new(endless) }.to raise_error(Candle::InvalidInputError, /endless/)
      expect { described_class.new([1.0]).index_select(endless) }.to raise_error(Candle::InvalidInputError, /endless/)
    end
  end

  it "says which bound of a range is wrong" do
    [0.5..1, 0..(2**70), "a".."b", 0..1e300].each do |range|
      expect { described_class.new([1.0, 2.0])[range] }
        .to raise_error(Candle::InvalidInputError, /the bound of a range must be an Integer/)
    end
  end
end

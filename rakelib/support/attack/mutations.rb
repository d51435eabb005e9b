# frozen_string_literal: true

require "json"

# Damage to files and values, chosen by a Random.
class Mutations
  NUMBERS = [0, -1, 1, 2**31, 2**32, (2**53) + 1, 2**63, -(2**63), 2**64, 1e308, -0.5, 1e-320].freeze
  TEXTS = ["", "\u0000", "a" * 70_000, "../../etc/passwd", "[MASK]", "\u{1F468}\u200D\u{1F469}", "(a|b)*c{1,999}",
           "{{ x }}", "F64", "BertForMaskedLM", "modernbert", "query"].freeze

  def initialize(random)
    @random = random
  end

  def pick(list) = list[@random.rand(list.size)]

  # @return [String] a few bytes of it damaged, doubled, moved or cut off
  def bytes(original)
    damaged = original.b
    (1 + @random.rand(4)).times { damaged = damage(damaged) unless damaged.empty? }
    damaged
  end

  # @return [String] JSON with a few of its values or keys replaced, removed or nested; now and then bytes of it
  def json(text)
    return bytes(text) if @random.rand(4).zero?

    value = JSON.parse(text)
    (1 + @random.rand(3)).times { value = changed(value, 0) }
    JSON.generate(value, max_nesting: 0)
  rescue JSON::ParserError
    bytes(text) # damaged before
  end

  # @return [String] a safetensors file whose header, of the right length, says something else
  def safetensors(original)
    return bytes(original) if @random.rand(3).zero?

    length = original.unpack1("Q<")
    header = json(original.byteslice(8, length)).b
    [header.bytesize].pack("Q<") + header + original.byteslice((8 + length)..)
  end

  # @return [String] pieces of texts put together in another order
  def spliced(texts)
    parts = Array.new(1 + @random.rand(3)) do
      text = pick(texts)
      first = @random.rand(text.size)
      text[first, 1 + @random.rand(text.size)]
    end
    @random.rand(3).zero? ? bytes(parts.join).force_encoding("UTF-8").scrub("?") : parts.join
  end

  # @return [Object] a value that no one expects
  def value
    case @random.rand(8)
    when 0 then nil
    when 1, 2 then pick(NUMBERS)
    when 3, 4 then pick(TEXTS)
    when 5 then nested(@random.rand(2).zero? ? 50 : 3000)
    when 6 then [true, false, [], {}][@random.rand(4)]
    else Array.new(@random.rand(2000)) { |index| index }
    end
  end

  private

  def nested(depth)
    depth.times.reduce(0) { |inner, _| @random.rand(2).zero? ? [inner] : { "a" => inner } }
  end

  def damage(data)
    at = @random.rand(data.bytesize)
    part = data.byteslice(at, 1 + @random.rand(16))
    before = data.byteslice(0, at)
    after = data.byteslice((at + part.bytesize)..)
    before + replaced(part) + (@random.rand(8).zero? ? "" : after)
  end

  def replaced(part)
    case @random.rand(5)
    when 0 then ""
    when 1 then part * 2
    when 2 then @random.bytes(part.bytesize)
    when 3 then "\xFF".b * part.bytesize
    else part.dup.tap { |copy| copy.setbyte(0, copy.getbyte(0) ^ (1 << @random.rand(8))) }
    end
  end

  def changed(value, depth)
    deeper = value.respond_to?(:each) && !value.empty? && depth < 40 && !@random.rand(5).zero?
    return self.value unless deeper

    value.is_a?(Hash) ? changed_hash(value, depth) : changed_array(value, depth)
  end

  def changed_hash(value, depth)
    key = pick(value.keys)
    case @random.rand(8)
    when 0 then value.except(key)
    when 1 then value.merge(pick(TEXTS) => value[key])
    else value.merge(key => changed(value[key], depth + 1))
    end
  end

  def changed_array(value, depth)
    at = @random.rand(value.size)
    case @random.rand(6)
    when 0 then value[0...at] + value[(at + 1)..]
    when 1 then value + [value[at]]
    else value[0...at] + [changed(value[at], depth + 1)] + value[(at + 1)..]
    end
  end
end

# frozen_string_literal: true

require "timeout"
require "tmpdir"
require_relative "../../rakelib/support/attack/arguments"

# What is not what it seems: objects whose conversions lie, cycles, and what has no methods at all.
RSpec.describe Candle::Arguments do
  let(:embedder) { ServedModels.models["embedder"] }
  let(:cyclic) { [].tap { |list| list << list } }

  def with(method, &body) = Object.new.tap { |object| object.define_singleton_method(method, &body) }

  it "refuses objects whose to_str gives no String" do
    [nil, 7, Object.new].each do |answer|
      expect { embedder.embed(with(:to_str) { answer }) }
        .to raise_error(Candle::InvalidInputError, /text must be a String, but its to_str gives/)
    end
    expect(embedder.embed(with(:to_str) { "fox" })).to eq(embedder.embed("fox"))
  end

  it "refuses what has none of the methods of an object" do
    nothing = BasicObject.new
    expect { embedder.embed(nothing) }
      .to raise_error(Candle::InvalidInputError, "texts must be an Array of Strings, not a BasicObject")
    expect { embedder.embed([nothing]) }.to raise_error(Candle::InvalidInputError, /texts\[0\].*BasicObject/)
    expect { embedder.embed("a", as: nothing) }.to raise_error(ArgumentError, /as must be one of .* not a BasicObject/)
    expect { embedder.embed("a", dimensions: nothing) }.to raise_error(ArgumentError, /dimensions .* not a BasicObject/)
  end

  it "refuses what is odd in every argument of every method" do
    unclear = []
    # What methods that save are told to write stays there.
    Dir.mktmpdir do |folder|
      Dir.chdir(folder) do
        HostileArguments.new.give_each do |name, call|
          Timeout.timeout(5) { call.call }
        rescue NameError, EncodingError, JSON::JSONError, SystemStackError => e
          unclear << "#{name}: #{e.message.lines.first} #{e.backtrace.grep(%r{lib/candle}).first}"
        rescue StandardError => e
          unclear << "#{name} is not called: #{e.message}" if e.message.start_with?("wrong number of arguments")
        end
      end
    end
    expect(unclear.uniq).to be_empty
  end

  it "refuses it as a prompt, a conversation, an id, and a path in another encoding too" do
    llm = ServedModels.models["llm"]
    nothing = BasicObject.new
    expect { llm.generate(nothing) }.to raise_error(Candle::InvalidInputError, /BasicObject/)
    expect { llm.complete(nothing) }.to raise_error(Candle::InvalidInputError, /BasicObject/)
    expect { llm.chat([nothing]) }.to raise_error(Candle::InvalidInputError, /BasicObject/)
    expect { llm.generate("a", max_length: nothing) }.to raise_error(ArgumentError, /max_length .* BasicObject/)
    expect { embedder.tokenizer.decode([nothing]) }.to raise_error(Candle::InvalidInputError, /token id .* BasicObject/)
    expect { Candle::Index.open("a".encode("UTF-16LE")) }.to raise_error(Candle::Error)
  end

  it "refuses cycles and what can't even be shown" do
    expect do
      embedder.embed(cyclic)
    end.to raise_error(Candle::InvalidInputError, /texts\[0\] must be a String, not an Array/)
    expect { embedder.embed("a", batch_tokens: cyclic) }.to raise_error(ArgumentError, /not \[\[\.\.\.\]\]/)
    mute = with(:inspect) { raise "not today" }
    expect { embedder.embed("a", batch_tokens: mute) }.to raise_error(ArgumentError, /not an Object/)
    deep = 20_000.times.reduce([]) { |inner, _| [inner] }
    expect { embedder.embed("a", batch_tokens: deep) }.to raise_error(ArgumentError, /batch_tokens/)
  end

  it "lets an object's own errors through" do
    expect { embedder.embed(with(:to_str) { raise IOError, "gone" }) }.to raise_error(IOError, "gone")
  end
end

# frozen_string_literal: true

require "tmpdir"

RSpec.describe Candle::Session do
  let(:llm) { ServedModels.models["llm"] }

  around { |example| Dir.mktmpdir { |directory| Dir.chdir(directory) { example.run } } }

  def session(count, size = 10)
    messages = Array.new(count) { |at| { role: at.even? ? "user" : "assistant", content: "word " * size } }
    described_class.new(llm, messages: messages)
  end

  describe "#save" do
    it "leaves the old or the new file, whole, when the process is killed, and nothing beside it" do
      found = Array.new(20) do |turn|
        session(1).save("saved")
        pid = fork { session(300, 200).then { |large| loop { large.save("saved") } } }
        sleep 0.01 until File.size("saved") > 100_000
        sleep(turn * 0.003)
        Process.kill(:KILL, pid)
        Process.wait(pid)
        described_class.load(llm, "saved").messages.size
      end
      expect(found).to include(300)
      expect(found - [1, 300]).to be_empty
      session(2).save("saved")
      expect([Dir.children("."), described_class.load(llm, "saved").messages.size]).to eq([["saved"], 2])
    end

    it "is never seen half by who loads it meanwhile" do
      session(50).save("saved")
      savers = Array.new(3) { |at| Thread.new { 30.times { session(50 + at, 500).save("saved") } } }
      loads = 0
      loads += described_class.load(llm, "saved").messages.size.positive? ? 1 : 0 while savers.any?(&:alive?)
      savers.each(&:join)
      expect(loads).to be > 10
      expect(Dir.children(".")).to eq(["saved"])
    end

    it "keeps the mode, follows a link and refuses what is not a regular file" do
      session(1).save("saved")
      File.chmod(0o600, "saved")
      File.symlink("saved", "link")
      session(3).save("link")
      expect([File.symlink?("link"), File.stat("saved").mode & 0o777]).to eq([true, 0o600])
      expect(described_class.load(llm, "saved").messages.size).to eq(3)
      File.mkfifo("pipe")
      expect { session(1).save("pipe") }.to raise_error(Candle::InvalidInputError, /session can't .* is a named pipe/)
      expect { session(1).save(".") }.to raise_error(Candle::InvalidInputError, /it is a directory/)
      expect { session(1).save("none/x") }.to raise_error(Candle::InvalidInputError, %r{can't be written to .*none/x})
    end
  end

  describe ".load" do
    it "says what is wrong with a file" do
      expect { described_class.load(llm, "none") }
        .to raise_error(Candle::InvalidInputError, "there is no saved session none: write one with Session#save")
      expect { described_class.load(llm, ".") }.to raise_error(Candle::InvalidInputError, /can't be read from \./)
      { "{" => /not a saved session/, "\xFF" => /not valid UTF-8/, '{"messages": 5}' => /messages must be/,
        '{"messages": [5]}' => /messages\[0\]/,
        '{"messages": [], "chat_template": 5}' => /chat_template must be a String, not an Integer/ }
        .each do |text, message|
          File.binwrite("bad", text)
          expect { described_class.load(llm, "bad") }.to raise_error(Candle::InvalidInputError, message)
        end
    end
  end

  it "says what is wrong with a template or an adapter" do
    expect { described_class.new(llm, chat_template: 5) }
      .to raise_error(Candle::InvalidInputError, /chat_template must be a String/)
    expect { described_class.new(llm, adapter: 5) }.to raise_error(ArgumentError, /adapter must be a String/)
    broken = described_class.new(llm, chat_template: "{% if %}")
    expect { broken.say("the") }.to raise_error(Candle::Error, /template/)
  end
end

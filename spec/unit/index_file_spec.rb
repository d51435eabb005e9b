# frozen_string_literal: true

require "timeout"
require "tmpdir"

# How an index is written, and what may happen to its file.
RSpec.describe Candle::Index do
  around { |example| Dir.mktmpdir { |directory| Dir.chdir(directory) { example.run } } }

  def filled(count)
    described_class.new(dimension: 4).add_all((0...count).map { |id| [id, [id.to_f, 1.0, 2.0, 3.0]] })
  end

  it "leaves the old or the new file when it is killed, and removes what it left" do
    filled(5).save("vectors")
    large = filled(20_000)
    found = Array.new(20) do |turn|
      pid = fork { loop { large.save("vectors") } }
      sleep(0.01 + (turn * 0.003))
      Process.kill(:KILL, pid)
      Process.wait(pid)
      described_class.open("vectors").size
    end
    expect(found - [5, 20_000]).to be_empty
    filled(6).save("vectors")
    expect([Dir.children("."), described_class.open("vectors").size]).to eq([["vectors"], 6])
  end

  it "keeps the mode and the owner" do
    filled(1).save("vectors")
    File.chmod(0o600, "vectors")
    File.chown(1234, 4321, "vectors") if Process.uid.zero?
    owner = File.stat("vectors").then { |stat| [stat.mode & 0o777, stat.uid, stat.gid] }
    filled(2).save("vectors")
    expect(File.stat("vectors").then { |stat| [stat.mode & 0o777, stat.uid, stat.gid] }).to eq(owner)
    expect(described_class.open("vectors").size).to eq(2)
  end

  it "does so for texts too, by save and by compact, whatever a process of the same number left" do
    index = described_class.new.add(1, "a fox")
    index.save("texts")
    File.chmod(0o640, "texts")
    File.chown(1234, 4321, "texts") if Process.uid.zero?
    owner = -> { File.stat("texts").then { |stat| [stat.mode & 0o7777, stat.uid, stat.gid] } }
    before = owner.call
    writer = described_class.open("texts", write: true)
    File.write("texts.#{Process.pid}.#{writer.object_id}.part", "left")
    writer.add(2, "a dog").compact.add(3, "a wolf").close
    expect([owner.call, described_class.open("texts").size]).to eq([before, 3])
    File.symlink("texts", "link")
    index.save("link")
    expect([owner.call, described_class.open("texts").size, Dir.children(".").sort]).to eq([before, 1, %w[link texts]])
    File.mkfifo("pipe")
    expect { index.save("pipe") }.to raise_error(Candle::InvalidInputError, /pipe is not a regular file/)
    expect(File.stat("pipe")).to be_pipe
  end

  it "follows links and refuses what is not a regular file" do
    Dir.mkdir("deep")
    File.symlink("deep/vectors", "link")
    [1, 2].each { |count| filled(count).save("link") }
    expect([File.readlink("link"), Dir.children("deep"), described_class.open("link").size])
      .to eq(["deep/vectors", ["vectors"], 2])
    # What a device would be, without the risk of losing one.
    File.mkfifo("pipe")
    File.symlink("pipe", "link to a pipe")
    ["pipe", "link to a pipe"].each do |path|
      expect { filled(1).save(path) }.to raise_error(Candle::InvalidInputError, /pipe: it is a named pipe/)
    end
    expect(File.stat("pipe")).to be_pipe
    expect { filled(1).save("deep") }.to raise_error(Candle::InvalidInputError, /it is a directory/)
  end

  it "does not depend on a small file once it is open" do
    filled(300).build_graph.save("vectors")
    index = described_class.open("vectors")
    expected = index.search([1.0, 1.0, 1.0, 1.0])
    File.truncate("vectors", 10)
    expect(index.search([1.0, 1.0, 1.0, 1.0])).to eq(expected)
    index.save("vectors")
    expect(described_class.open("vectors").search([1.0, 1.0, 1.0, 1.0])).to eq(expected)
  end

  it "says that a large file was shortened" do
    output, errors, status = run_ruby(<<~RUBY, within: 60)
      index = Candle::Index.new(dimension: 1024)
      vector = ([1.0] * 1024).pack("e*")
      index.add_all((0...2600).map { |id| [id, vector] }).build_graph(links: 2, effort: 2).save("vectors")
      index = Candle::Index.open("vectors")
      File.truncate("vectors", 1_000_000)
      [-> { index.search(vector) }, -> { index.save("other") }, -> { index.add(1, vector).build_graph(links: 4) },
       -> { Candle::Index.open("vectors") }].each do |call|
        call.call
        puts "no error"
      rescue Candle::CorruptModelError => e
        puts e.message[/was shortened while|not a sound index/]
      end
      puts File.exist?("other")
    RUBY
    said = ["was shortened while"] * 3
    expect([output.lines.map(&:chomp), errors, status.success?])
      .to eq([[*said, "not a sound index", "false"], "", true])
  end

  describe "while another thread saves" do
    # Repairing the links around many deleted vectors takes a while.
    let(:slow) do
      random = Random.new(1)
      vectors = (0...6144).map { |id| [id, Array.new(8) { random.rand(-1.0..1.0) }.pack("e*")] }
      index = described_class.new(dimension: 8).add_all(vectors).build_graph(links: 128, effort: 64)
      (0...6144).step(2) { |id| index.delete(id) }
      index
    end

    def saving(index)
      saver = Thread.new { index.save("vectors") }
      sleep 0.2
      yield saver
    ensure
      saver.kill.join
    end

    it "is interrupted where it waits to add or to delete" do
      saving(slow) do |saver|
        [-> { slow.add(1, [0.0] * 8) }, -> { slow.delete(1) }].each do |call|
          took = seconds { expect { Timeout.timeout(0.1) { call.call } }.to raise_error(Timeout::Error) }
          expect([took < 1, saver.alive?]).to eq([true, true])
        end
        thread = Thread.new { slow.add(7, [0.0] * 8) }
        sleep 0.05
        expect([thread.kill.join(1), saver.alive?]).to eq([thread, true])
      end
      expect(slow.add(7, [0.0] * 8).include?(7)).to be(true)
    end

    it "is searched, also while somebody waits to add" do
      saving(slow) do |saver|
        adder = Thread.new { slow.add(10_000, [0.5] * 8) }
        sleep 0.05
        expect(slow.search([0.5] * 8, top_k: 3, exact: true).size).to eq(3)
        expect([adder.alive?, saver.alive?]).to eq([true, true])
        saver.kill
        adder.join
      end
      expect(slow.search([0.5] * 8, top_k: 1, exact: true).first[:id]).to eq(10_000)
    end
  end

  it "is changed by a process that was forked while another thread saved" do
    index = filled(20_000)
    saver = Thread.new { loop { index.save("vectors") } }
    sleep 0.05
    pid = fork { exit!(index.add("new", [1.0] * 4).include?("new") && index.save("other") ? 0 : 1) }
    deadline = now + 20
    sleep 0.05 until (ended = Process.wait(pid, Process::WNOHANG)) || now > deadline
    Process.kill(:KILL, pid) && Process.wait(pid) unless ended
    expect([ended, $?.exitstatus]).to eq([pid, 0]) # rubocop:disable Style/SpecialGlobalVars
  ensure
    saver.kill.join
  end
end

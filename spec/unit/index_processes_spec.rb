# frozen_string_literal: true

require "fileutils"
require "io/wait"
require "tmpdir"

# An index whose file several processes read, write, replace and copy at the same time.
RSpec.describe Candle::Index do
  around { |example| Dir.mktmpdir { |directory| Dir.chdir(directory) { example.run } } }

  after { children.each { |child| stop(child) } }

  let(:children) { [] }

  # A Ruby process with the gem and these methods, which may be spoken to line by line.
  def child(script)
    shared = <<~RUBY
      require "io/wait"
      $stdout.sync = true
      Thread.new { sleep(60) && abort("no end") }
      def vector(id) = Array.new(16) { |at| Math.sin((id * 7.3) + at) }
      def put(index, id) = index.add(id, vector(id), { text: "document \#{id}" })
      # What is found by its vector, all of it; each must have what was added with it.
      def found(index)
        hits = index.search(vector(1), top_k: nil)
        odd = hits.reject { |hit| hit[:metadata] == { text: "document \#{hit[:id]}" } }
        odd.empty? ? hits.map { |hit| hit[:id] }.sort : raise("other metadata: \#{odd.first(3)}")
      end
      def writer
        Candle::Index.open("x.index", write: true)
      rescue Candle::InvalidInputError => e
        raise unless e.message.include?("one writer")
        sleep 0.001
        retry
      end
    RUBY
    IO.popen([RbConfig.ruby, "-I#{ChildRuby::LIB}", "-rcandle", "-e", shared + script], "r+").tap do |process|
      children << process
    end
  end

  def stop(process)
    return if process.closed?

    Process.kill(:KILL, process.pid)
    process.close
  end

  # @return [Array<String>] what it wrote to its end
  def ended(process)
    process.close_write
    lines = process.read.lines(chomp: true)
    process.close
    expect(Process.last_status).to be_success
    lines
  end

  def filled(count, path = "x.index")
    index = described_class.new(dimension: 16)
    (0...count).each { |id| index.add(id, vector(id), { text: "document #{id}" }) }
    index.save(path)
    index
  end

  def vector(id) = Array.new(16) { |at| Math.sin((id * 7.3) + at) }

  def ids(index) = index.search(vector(1), top_k: nil).map { |hit| hit[:id] }.sort

  it "is opened and refreshed whole while another process compacts it" do
    filled(1500)
    writer = child(<<~RUBY)
      index = writer
      number = 1500
      until $stdin.wait_readable(0)
        10.times do
          put(index, number)
          index.delete(number - 1500)
          number += 1
        end
        index.compact
      end
      index.close
      puts "done"
    RUBY
    reading = <<~RUBY
      index = Candle::Index.open("x.index")
      30.times do |turn|
        index = turn.even? ? Candle::Index.open("x.index") : index.refresh
        ids = found(index)
        # Ten come for ten that go: those that are there follow one another.
        raise "\#{ids.size} of \#{index.size}" unless ids == (ids.first..ids.last).to_a && ids.size == 1500
      end
      puts "whole"
    RUBY
    readers = Array.new(2) { child(reading) }
    expect(readers.map { |reader| ended(reader) }).to eq([["whole"]] * 2)
    expect(ended(writer)).to eq(["done"])
  end

  it "keeps what each of several processes wrote, which take turns" do
    # So many that opening takes a while, in which others may replace the file.
    many = (0...100_000).map { |id| [id, [id.to_f, *[1.0] * 15].pack("e*")] }
    described_class.new(dimension: 16).add_all(many).save("x.index")
    script = ->(first) { <<~RUBY }
      (#{first}...#{first} + 6).each do |id|
        index = writer
        put(index, id)
        id.even? ? index.compact : index.sync
        index.close
      end
      puts "done"
    RUBY
    writers = [300_000, 400_000, 500_000].map { |first| child(script.call(first)) }
    expect(writers.map { |writer| ended(writer) }).to eq([["done"]] * 3)
    expected = [300_000, 400_000, 500_000].flat_map { |first| [*first...first + 6] }
    expect(ids(described_class.open("x.index")) - [*0...100_000]).to eq(expected)
    described_class.open("x.index", write: true).compact.close
    expect(ids(described_class.open("x.index")) - [*0...100_000]).to eq(expected)
  end

  it "is not replaced by others while a process writes to it" do
    filled(5)
    writer = child('index = writer; puts "open"; $stdin.gets; put(index, 5); index.close; puts "closed"')
    expect(writer.gets).to eq("open\n")
    [described_class.new(dimension: 2).add(1, [1.0, 0.0]), described_class.new.add(1, "a fox")].each do |other|
      expect { other.save("x.index") }.to raise_error(Candle::InvalidInputError, /one writer at a time/)
    end
    writer.puts
    expect(ended(writer)).to eq(["closed"])
    expect(ids(described_class.open("x.index"))).to eq([*0..5])
    described_class.new.add(1, "a fox").save("x.index")
    expect([described_class.open("x.index").size, Dir.children(".")]).to eq([1, ["x.index"]])
  end

  it "says that what it wrote to is gone, and writes its own file by compacting it" do
    filled(3)
    filled(4, "y.index")
    index = described_class.open("x.index", write: true)
    index.add(3, vector(3)).sync
    expect(index.save("x.index")).to eq(File.expand_path("x.index"))
    index.add(4, vector(4)).sync
    expect(ids(described_class.open("x.index"))).to eq([*0..4])
    index.add(5, vector(5))
    File.rename("y.index", "x.index")
    [-> { index.sync }, -> { index.compact }, -> { index.close }].each do |call|
      expect(&call).to raise_error(Candle::InvalidInputError, /replaced or removed/)
    end
    expect { index.sync }.to raise_error(Candle::InvalidInputError, /isn't open/)
    expect(ids(described_class.open("x.index"))).to eq([*0..3])
    expect(ids(index)).to eq([*0..5])
  end

  it "is written by the process that opened it, not by its children, and free once that closed it" do
    filled(3)
    index = described_class.open("x.index", write: true)
    reader, output = IO.pipe
    # The child keeps the file open until its input ends.
    forked = IO.popen("-", "r+")
    unless forked
      begin
        messages = [-> { index.add(7, vector(7)).sync }, -> { index.close }, -> { index.close }].map do |call|
          call.call.inspect
        rescue Candle::InvalidInputError => e
          e.message
        end
        output.puts(messages)
        $stdin.read
      ensure
        exit!(0)
      end
    end
    output.close
    children << forked
    said = /before this process was forked/
    expect(Array.new(3) { reader.gets }).to match([said, said, "nil\n"])
    expect { described_class.open("x.index", write: true) }.to raise_error(Candle::InvalidInputError, /one writer/)
    index.add(3, vector(3)).close
    described_class.open("x.index", write: true).add(4, vector(4)).close
    expect(ids(described_class.open("x.index"))).to eq([*0..4])
  end

  it "shows readers in other processes what is written, from a file of vectors alone too" do
    described_class.new(dimension: 16).add_all([[0, vector(0)], [1, vector(1)]]).save("x.index")
    script = <<~RUBY
      index = Candle::Index.open("x.index")
      while $stdin.gets
        before = index.size
        puts [before, *index.refresh.search(vector(1), top_k: nil).map { |hit| hit[:id] }.sort].join(" ")
      end
    RUBY
    readers = Array.new(2) { child(script) }
    ask = -> { readers.map { |reader| reader.puts && nil || reader.gets.chomp } }
    expect(ask.call).to eq(["2 0 1"] * 2)
    writer = described_class.open("x.index", write: true)
    writer.add(2, vector(2)).sync
    expect(ask.call).to eq(["2 0 1 2"] * 2)
    writer.add(3, vector(3)).sync.delete(0)
    expect(ask.call).to eq(["3 0 1 2 3"] * 2)
    writer.compact
    expect(ask.call).to eq(["4 1 2 3"] * 2)
    writer.close
    described_class.new(dimension: 16).add(9, vector(9)).save("x.index")
    expect(ask.call).to eq(["3 9"] * 2)
  end

  it "grows for readers in other processes while one writes" do
    filled(100)
    writer = child(<<~RUBY)
      index = writer
      (100...300).each do |id|
        put(index, id)
        index.sync if (id % 7).zero?
        index.compact if (id % 61).zero?
      end
      index.close
      puts "done"
    RUBY
    readers = Array.new(3) { child(<<~RUBY) }
      index = Candle::Index.open("x.index")
      size = 0
      until size == 300
        ids = found(index.refresh)
        raise "\#{ids.size} after \#{size}" unless ids.size >= size && ids == (0...ids.size).to_a
        size = ids.size
      end
      puts "done"
    RUBY
    expect([writer, *readers].map { |process| ended(process) }).to eq([["done"]] * 4)
  end

  it "is copied at any moment while a process writes: what was synced before is in the copy" do
    filled(50)
    writer = child(<<~RUBY)
      index = writer
      50.step do |id|
        put(index, id)
        index.sync
        puts id
        index.compact if (id % 40).zero?
        sleep 0.002
      end
    RUBY
    last = writer.gets.to_i
    copies = Array.new(25) do |number|
      sleep 0.01
      last = writer.gets.to_i while writer.wait_readable(0)
      FileUtils.cp("x.index", "copy.index")
      copied = ids(described_class.open("copy.index"))
      expect(copied).to eq((0...copied.size).to_a)
      expect(copied.size).to be > last
      next copied.size unless (number % 8).zero?

      # A copy is an index like any other.
      described_class.open("copy.index", write: true).add(-1, vector(2)).compact.close
      expect(ids(described_class.open("copy.index"))).to eq([-1, *copied])
      copied.size
    end
    expect(copies.uniq.size).to be > 5
  end
end

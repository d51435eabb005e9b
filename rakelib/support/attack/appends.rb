# frozen_string_literal: true

require "fileutils"
require "io/wait"
require_relative "patience"

# A process that adds to an index of bytes and texts, deletes and compacts, and is killed at any moment, while another
# one reads. What was synced is in the file, and in copies of it, and the reader finds what was written at some moment.
class Appends
  Wrong = Class.new(StandardError)
  # What a reader may take to end once it is told to.
  PATIENCE = 5
  # An index is replaced after so many rounds.
  ROUNDS = 25
  BATCHES = 30
  IDS = 60
  # Vectors that never change, so that opening and compacting take a while in which others may come between.
  OTHERS = 20_000
  WORDS = %w[the quick brown fox jumps over lazy dog hello world paris].freeze

  # @param root [String] where the fixtures are
  # @param folder [String] for the index
  def initialize(root, folder)
    @model = Candle::EmbeddingModel.from_pretrained(File.join(root, "tiny/bert-sentence"), device: "cpu")
    @folder = File.join(folder, "appends")
    @path = File.join(@folder, "x.index")
    @rounds = 0
    @processes = []
  end

  # @param random [Random]
  # @return [void]
  def attack(random)
    begin_anew if @state.nil? || (@rounds % ROUNDS).zero?
    @rounds += 1
    batches = Array.new(BATCHES) { batch(random) }
    states = batches.each_with_object([@state]) { |(changes, _), all| all << changed(all.last, changes) }
    @state = nil
    synced = killed_while_writing(batches, states, random)
    found = content(opened)
    raise Wrong, "the file has another state than #{synced} or the next" unless states[synced, 2].include?(found)

    tidy(found) if random.rand(8).zero?
    @state = found
  end

  private

  def opened(path = @path, **options) = Candle::Index.open(path, model: @model, **options)

  def begin_anew
    FileUtils.rm_rf(@folder)
    FileUtils.mkdir_p(@folder)
    others = ([1.0] * @model.dimension).pack("e*")
    index = Candle::Index.new(model: @model, dtype: :int8)
    index.add_all((IDS...IDS + OTHERS).map { |id| [id, others] }).save(@path)
    @state = {}
  end

  # Some changes, and what makes them last: pairs of an id and its version, nil where it is deleted.
  def batch(random)
    changes = Array.new(1 + random.rand(12)) do
      [random.rand(IDS), random.rand(4).zero? ? nil : random.rand(1 << 20)]
    end
    [changes, random.rand(6).zero? ? :compact : :sync]
  end

  def changed(state, changes)
    changes.each_with_object(state.dup) { |(id, version), all| version ? all[id] = version : all.delete(id) }
  end

  # @return [Integer] how many batches were synced for sure
  def killed_while_writing(batches, states, random)
    said, output = IO.pipe
    writer = process { write(batches, output) }
    output.close
    reader, verdict, stop = reading(states)
    synced = 0
    sleep(random.rand * 0.15)
    synced = [synced, copied(states, said)].max if random.rand(3).zero?
    kill(writer)
    rest = said.read
    raise Wrong, "the writer failed: #{rest}" if rest.match?(/[a-z]/i)

    ended(reader, verdict, stop)
    [synced, *rest.scan(/\d+(?=\n)/).map(&:to_i)].max
  ensure
    [said, verdict, stop].each { |pipe| pipe&.close }
    @processes.dup.each { |id| kill(id) }
  end

  def process
    child = fork do
      yield
      exit!(0)
    rescue Exception # rubocop:disable Lint/RescueException
      exit!(1)
    end
    child.tap { @processes << child }
  end

  def kill(child)
    Process.kill(:KILL, child)
    Process.wait(child)
    @processes.delete(child)
  end

  def write(batches, output)
    index = opened(write: true)
    batches.each_with_index do |(changes, way), number|
      changes.each { |id, version| version ? index.add(id, item(id, version), { version: version }) : index.delete(id) }
      index.public_send(way)
      output.syswrite("#{number + 1}\n")
    end
    index.close
    sleep
  rescue StandardError => e
    output.syswrite("#{e.class}: #{e.message}\n")
  end

  def reading(states)
    verdict, output = IO.pipe
    stopped, stop = IO.pipe
    reader = process do
      stop.close
      output.syswrite(watched(states, stopped))
    end
    [output, stopped].each(&:close)
    [reader, verdict, stop]
  end

  # @return [String] what is wrong with what a reader finds, or that nothing is
  def watched(states, stopped)
    index = opened
    seen = 0
    until stopped.wait_readable(0)
      index = rand(5).zero? ? opened : index.refresh
      found = content(index)
      later = (seen...states.size).find { |number| states[number] == found }
      return "a reader finds what was never written after #{seen}" unless later

      seen = later
    end
    "whole"
  rescue StandardError => e
    "a reader fails: #{e.class}: #{e.message}"
  end

  def ended(reader, verdict, stop)
    stop.close
    found = Patience.new(PATIENCE, reader).wait { |seconds| verdict.wait_readable(seconds) }
    text = found ? verdict.read : "a reader does not end"
    kill(reader)
    raise Wrong, text unless text == "whole"
  end

  # Copies the file while it is written.
  #
  # @return [Integer] how many batches were synced before
  def copied(states, said)
    synced = said.wait_readable(0) ? said.readpartial(1 << 16).scan(/\d+(?=\n)/).last.to_i : 0
    copy = "#{@path}.copy"
    FileUtils.cp(@path, copy)
    found = content(opened(copy))
    File.delete(copy)
    raise Wrong, "a copy has another state than #{synced} or later" unless states.drop(synced).include?(found)

    synced
  end

  # Odd ids have texts, even ones vectors.
  def item(id, version) = id.odd? ? text(id, version) : vector(id, version)

  def text(id, version)
    random = Random.new((id << 20) + version)
    Array.new(6) { WORDS.sample(random: random) }.join(" ")
  end

  def vector(id, version)
    random = Random.new((id << 20) + version)
    Array.new(@model.dimension) { random.rand(-1.0..1.0) }
  end

  # @return [Hash{Integer => Integer}] ids and their versions; each has the text or the vector of its version
  def content(index)
    query = vector(0, 0)
    hits = index.search(query, top_k: nil, among: 0...IDS)
    raise Wrong, "#{hits.size} of #{index.size} are found" unless hits.size + OTHERS == index.size

    hits.to_h do |hit|
      id, version = hit[:id], hit[:metadata][:version] # rubocop:disable Style/ParallelAssignment
      right = id.odd? ? hit[:text] == text(id, version) : (hit[:score] - cosine(query, vector(id, version))).abs < 0.03
      raise Wrong, "#{hit} is not what was added" unless right

      [id, version]
    end
  end

  def cosine(one, other)
    one.zip(other).sum { |a, b| a * b } / Math.sqrt(one.sum { |a| a * a } * other.sum { |b| b * b })
  end

  # Compacting removes what killed processes left.
  def tidy(state)
    opened(write: true).compact.close
    left = Dir.children(@folder) - ["x.index"]
    raise Wrong, "#{left} lies beside the index" unless left.empty?
    raise Wrong, "compacting changed the index" unless content(opened) == state
  end
end

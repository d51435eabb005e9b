# frozen_string_literal: true

# Embeds, stores, indexes and searches many short texts with Sidekiq and pgvector, and prints what it measured.
# `rake scale` starts the servers and runs it.
require "active_record"
require "sidekiq"
require "candle/jobs"
require_relative "../spec/rails/support/workers"

# One run, from texts to recall.
class Scale
  MODEL = "sentence-transformers/all-MiniLM-L6-v2"
  DIMENSIONS = 384
  COUNT = Integer(ENV.fetch("COUNT", "100000"))
  SECONDS = Integer(ENV.fetch("SECONDS", "600"))
  DTYPE = ENV.fetch("DTYPE", "bf16").to_sym
  # Characters per second of one core, from which slices of about a second are cut.
  RATE = 40_000
  QUERIES = 100
  KINDS = %w[quiet narrow ancient modern crowded distant bright wooden frozen busy small famous abandoned hidden].freeze
  THINGS = %w[village bridge harbor market garden kitchen library station museum workshop theater bakery school mine
              lighthouse hospital orchard airport prison farm].freeze
  DOINGS = ["selling fresh bread", "teaching music", "repairing engines", "growing apples", "storing old letters",
            "measuring the weather", "building small boats", "printing newspapers", "showing paintings",
            "training young doctors", "sorting mail", "brewing beer", "mending nets", "carving stone"].freeze
  PLACES = %w[Lisbon Kyoto Nairobi Toronto Berlin Melbourne Chicago Oslo Lima Cairo Mumbai Seoul Dublin Prague].freeze
  TIMES = ["in winter", "at night", "before the war", "every Sunday", "since last year", "in the rain", "during summer",
           "at dawn", "until 1950", "by the river"].freeze

  def run
    prepare
    alone = measure("1 process, 1 core", 1, 1..(COUNT * 3 / 20))
    both = measure("2 processes, 1 core each", 2, ((COUNT * 3 / 20) + 1)..COUNT)
    report("2 processes against 1", "#{(both / alone).round(2)} x")
    check
    index
    search
  end

  private

  def prepare
    Sidekiq.logger.level = Logger::ERROR
    Redis.silence_deprecations = true
    connection.enable_extension("vector")
    define_model
    took = seconds { fill }
    report("inserting #{COUNT} texts", "#{took.round(1)} s")
  end

  def define_model
    migrate do
      create_table(:articles) { |table| table.text(:content) }
      add_embedding(:articles, dimensions: DIMENSIONS, bits: true)
    end
    Object.const_set(:Article, Class.new(ActiveRecord::Base))
    Article.has_embedding(:content, model: MODEL, dimensions: DIMENSIONS, dtype: DTYPE, bits: true, update: :manual)
  end

  def fill
    texts.each_slice(5000) { |slice| Article.insert_all(slice.map { |text| { content: text } }) }
  end

  # The first COUNT of all combinations, in an order made from a seed; those after them are queries.
  def texts(first = 0, count = COUNT)
    lists = [KINDS, THINGS, DOINGS, PLACES, TIMES]
    @orders ||= (0...lists.map(&:size).reduce(:*)).to_a.shuffle(random: Random.new(7))
    @orders[first, count].map do |number|
      parts = lists.map do |list|
        number, index = number.divmod(list.size)
        list[index]
      end
      "#{parts.first(3).join(" ")} in #{parts.last(2).join(" ")}"
    end
  end

  # @return [Float] texts per second
  def measure(name, processes, ids)
    workers = Workers.new("SPEC_MODEL" => MODEL, "SPEC_DIMENSIONS" => DIMENSIONS.to_s, "SPEC_BITS" => "1",
                          "SPEC_DTYPE" => DTYPE.to_s, "SPEC_THREADS" => "2", "CANDLE_NUM_THREADS" => "1")
    workers.start(processes)
    before = workers.cpu_seconds
    run = Candle::Jobs.embed(Article.where(id: ids), rate: RATE)
    run.stop unless run.wait(timeout: SECONDS, every: 0.5)
    summarize(name, run.progress, workers.cpu_seconds - before, slices(run))
  ensure
    workers&.stop
  end

  def summarize(name, progress, busy, slices)
    rate = progress[:embedded] / progress[:seconds]
    report(name, "#{progress[:embedded]} texts in #{progress[:seconds]} s, #{rate.round} a second; " \
                 "#{busy.round(1)} s of processors, #{(progress[:embedded] / busy).round} texts in each; " \
                 "#{slices} slices, #{progress[:failed]} failed, #{progress[:set_aside]} set aside")
    rate
  end

  def slices(run)
    Candle::Jobs::Ledger.slices.where(run_id: run.id).count
  end

  def check
    current = Article.where.not(embedding: nil).count
    sums = Candle::Jobs::Ledger.slices.where(state: "done").sum(:embedded)
    report("rows with a vector, and writes that the ledger counted", "#{current}, #{sums}")
  end

  def index
    took = seconds do
      connection.execute("SET maintenance_work_mem = '1GB'")
      migrate { add_embedding_index(:articles) }
    end
    bits = seconds { migrate { add_embedding_index(:articles, :embedding_bits, type: :bit) } }
    connection.execute("ANALYZE articles")
    report("HNSW over vectors", "#{took.round(1)} s, #{size("index_articles_on_embedding_hnsw")}")
    report("HNSW over bits", "#{bits.round(1)} s, #{size("index_articles_on_embedding_bits_hnsw")}")
    report("the table", connection.select_value("SELECT pg_size_pretty(pg_table_size('articles'))"))
  end

  def size(name)
    connection.select_value("SELECT pg_size_pretty(pg_relation_size('#{name}'))")
  end

  def search
    queries = Article.candle_embedding.vectors(texts(COUNT, QUERIES))
    exact, time = latency(queries) { |query| without_index { plain(query) } }
    report("exact search", time)
    [40, 100, 200].each do |width|
      found, time = latency(queries) { |query| Article.with_search_settings(ef_search: width) { plain(query) } }
      report("HNSW, ef_search #{width}", "recall@10 #{recall(found, exact)}, #{time}")
    end
    [100, 400].each do |candidates|
      found, time = latency(queries) do |query|
        Article.with_search_settings(ef_search: candidates) do
          Article.nearest(query, limit: 10, candidates: candidates).pluck(:id)
        end
      end
      report("bits, #{candidates} candidates scored again", "recall@10 #{recall(found, exact)}, #{time}")
    end
  end

  # The plain search by vectors, without the bits.
  def plain(query)
    @plain ||= Class.new(ActiveRecord::Base) do
      self.table_name = "articles"
      has_embedding(:content, model: MODEL, dimensions: DIMENSIONS, dtype: DTYPE, update: :manual)
    end
    @plain.nearest(query, limit: 10).pluck(:id)
  end

  def without_index
    ActiveRecord::Base.transaction do
      connection.execute("SET LOCAL enable_indexscan = off")
      yield
    end
  end

  def latency(queries, &search)
    found = []
    took = seconds { found = queries.map(&search) }
    [found, "#{(1000 * took / queries.size).round(1)} ms a query"]
  end

  def recall(found, exact)
    found.zip(exact).sum { |one, other| (one & other).size.fdiv(other.size) }.fdiv(exact.size).round(4)
  end

  def migrate(&body)
    ActiveRecord::Migration.suppress_messages do
      Class.new(ActiveRecord::Migration[6.1]) { define_method(:change, &body) }.migrate(:up)
    end
  end

  def connection
    ActiveRecord::Base.connection
  end

  def seconds
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    yield
    Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
  end

  def report(name, value)
    puts "#{name}: #{value}"
    $stdout.flush
  end
end

ActiveRecord::Base.establish_connection(adapter: "postgresql", host: ENV.fetch("CANDLE_POSTGRES"), username: "candle",
                                        database: "postgres", min_messages: "warning")
Scale.new.run

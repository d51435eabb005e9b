# frozen_string_literal: true

require "sidekiq"
require "sidekiq/api"
require "candle/jobs/sidekiq_job"
require_relative "support/workers"

RSpec.describe "Candle::Jobs with Sidekiq" do
  let(:model) { Candle::EmbeddingModel.from_pretrained(Databases::MODEL) }
  let(:workers) { Workers.new("SPEC_MODEL" => Databases::MODEL, "SPEC_DIMENSIONS" => "32", "SPEC_DELAY" => "0.2") }

  before do
    connect(:postgresql)
    Candle::Jobs.backend = :sidekiq
    Candle::Jobs::Schema.drop(ActiveRecord::Base.connection)
    Sidekiq.redis(&:flushall)
    Sidekiq.logger.level = Logger::ERROR
    Redis.silence_deprecations = true
    article(update: :manual)
    # Who writes a vector says so: one line per write, from the database itself.
    ActiveRecord::Base.connection.execute(<<~SQL)
      DROP TABLE IF EXISTS writes;
      CREATE TABLE writes (article_id bigint NOT NULL);
      CREATE OR REPLACE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO writes VALUES (NEW.id); RETURN NEW; END';
      CREATE TRIGGER note AFTER UPDATE OF embedding ON articles FOR EACH ROW EXECUTE FUNCTION note_write();
    SQL
  end

  after do
    workers.stop
    Candle::Jobs.backend = nil
    ActiveRecord::Base.connection_pool.disconnect!
  end

  def fill(count)
    Article.insert_all(Array.new(count) { |index| { content: "the text with number #{index} of #{count}" } })
  end

  # @return [Array<Integer>] the processes that have a slice right now
  def busy
    tokens = Candle::Jobs::Ledger.slices.where(state: "taken").pluck(:token)
    tokens.map { |token| token.split[1].to_i } & workers.ids
  end

  it "loses nothing and doubles nothing when workers are killed at random" do
    fill(900)
    random = Random.new(7)
    workers.start(2)
    run = Candle::Jobs.embed(Article, batch: 10, lease: 2)
    kills = 0
    finished = run.wait(timeout: 120, every: 0.1) do |progress|
      victim = busy.sample(random: random)
      next if victim.nil? || kills == 6 || progress[:embedded] < kills * 90

      workers.kill(victim)
      kills += 1
      workers.launch
    end
    expect(finished).to be(true), run.inspect
    expect(kills).to be_between(4, 6)
    expect(run.progress).to include(total: 900, embedded: 900, skipped: 0, set_aside: 0, failed: 0, waiting: 0)
    expect(ActiveRecord::Base.connection.select_rows("SELECT count(*), count(DISTINCT article_id) FROM writes"))
      .to eq([[900, 900]])
    slices = Candle::Jobs::Ledger.slices.where(run_id: run.id)
    expect(slices.maximum(:attempts)).to be > 1
    Article.order("random()").limit(40).each do |record|
      expect(record).to be_embedding_current
      expect(record.embedding).to be_near(model.embed(record.content), 1e-5)
    end
  end

  it "goes on after every worker and the queue itself were lost" do
    fill(300)
    workers.start(1)
    run = Candle::Jobs.embed(Article, batch: 10, lease: 1.5)
    sleep 0.05 until run.progress[:embedded].positive?
    workers.kill(workers.ids.first)
    Sidekiq.redis(&:flushall)
    expect(run.progress).to include(state: :running)
    expect(run.progress[:waiting]).to be_positive
    sleep 1.5
    workers.start(1)
    expect(run.wait(timeout: 60, every: 0.2)).to be(true), run.inspect
    expect(run.progress).to include(embedded: 300, failed: 0)
  end

  it "ends a slice before a worker stops, and stops a run" do
    fill(200)
    workers.start(1)
    run = Candle::Jobs.embed(Article, batch: 10)
    sleep 0.05 until run.progress[:embedded].positive?
    run.stop
    sleep 1
    stopped = run.progress
    expect(stopped).to include(state: :stopped)
    expect(stopped[:waiting]).to be_positive
    workers.kill(workers.ids.first, "TERM")
    workers.start(1)
    expect(run.progress[:embedded]).to eq(stopped[:embedded])
    run.continue
    expect(run.wait(timeout: 60, every: 0.2)).to be(true), run.inspect
    expect(run.progress).to include(embedded: 200, state: :finished)
  end
end

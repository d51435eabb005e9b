# frozen_string_literal: true

require "active_job"
require "delegate"
require "timeout"

RSpec.describe Candle::Jobs do
  let(:model) { @model ||= Candle::EmbeddingModel.from_pretrained(Databases::MODEL) }
  let(:words) { %w[fox dog house apple world small red quick lazy hello one two three] }

  def texts(count)
    Array.new(count) { |index| "#{words[index % 13]} #{words[(index * 7) % 11]} number #{index}" }
  end

  def fill(count)
    Article.insert_all(texts(count).map { |text| { content: text } })
  end

  # A backend that only writes down what should run at once.
  def collecting(queue)
    Class.new do
      define_method(:enqueue) do |arguments, count:, delay:, **|
        count.times { queue << arguments } if delay.zero?
      end
    end.new
  end

  after { described_class.backend = nil }

  %i[postgresql sqlite].each do |database|
    context "with #{database}" do
      before do
        connect(database)
        Candle::Jobs::Schema.drop(ActiveRecord::Base.connection)
        described_class.backend = :inline
      end

      after { ActiveRecord::Base.connection_pool.disconnect! }

      it "embeds a relation, and finds nothing to do the second time" do
        article(update: :manual)
        fill(50)
        run = described_class.embed(Article.where("id > 10"), batch: 7)
        expect(run.progress).to include(total: 40, embedded: 40, skipped: 0, waiting: 0, failed: 0, state: :finished)
        expect(Article.where(embedding: nil).count).to eq(10)
        record = Article.find(30)
        expect(record).to be_embedding_current
        expect(record.embedding).to be_near(model.embed(record.content), 1e-5)
        record.update!(content: "something else")
        again = described_class.embed(Article, batch: 25).progress
        expect(again).to include(total: 50, embedded: 11, skipped: 39)
      end

      it "takes limited and ordered relations" do
        article(update: :manual)
        fill(20)
        described_class.embed(Article.order(id: :desc).limit(5), batch: 2)
        expect(Article.where.not(embedding: nil).ids.sort).to eq((16..20).to_a)
      end

      it "cuts a corpus into slices of the time asked for" do
        article(update: :manual)
        fill(300)
        run = described_class.embed(Article, seconds: 1, rate: 1000)
        sizes = Candle::Jobs::Ledger.slices.where(run_id: run.id).order(:id).pluck(:size)
        expect(sizes.sum).to eq(300)
        expect(sizes.max).to be <= 1000 / (16 + 10)
        expect(described_class.embed(Article, seconds: 1e-9, rate: 1).progress[:total]).to eq(300)
        measured = described_class.embed(Article)
        expect(Candle::Jobs::Ledger.slices.where(run_id: measured.id).count).to be < 5
      end

      it "inserts an Enumerable once, whatever is given twice" do
        article(update: :manual)
        pages = texts(30).zip(1..).map { |text, page| { address: "page/#{page}", content: text, language: "en" } }
        embed = ->(list) { described_class.embed(list, into: Article, unique_by: :address, batch: 8).progress }
        expect(embed.call(pages.each)).to include(total: 30, embedded: 30)
        expect(embed.call(pages)).to include(embedded: 0, skipped: 30)
        pages[2][:content] = "another text"
        expect(embed.call(pages)).to include(embedded: 1, skipped: 29)
        expect(Article.count).to eq(30)
        changed = Article.find_by(address: "page/3")
        expect(changed).to have_attributes(content: "another text", language: "en")
        expect(changed.embedding).to be_near(model.embed("another text"), 1e-5)
      end

      it "takes plain texts and pairs of key and text" do
        article(update: :manual)
        migrate { add_index(:articles, :embedding_digest, unique: true) }
        once = Enumerator.new { |list| %w[fox dog fox].each { |text| list << text } }
        progress = described_class.embed(once, into: Article, batch: 10).progress
        expect(progress).to include(total: 3, embedded: 2, skipped: 1)
        expect(Article.pluck(:content)).to contain_exactly("fox", "dog")
        described_class.embed([[7, "cat"], [8, "cow"]], into: Article)
        expect(Article.find(8).content).to eq("cow")
      end

      it "sets texts aside that can't be embedded" do
        article(update: :manual)
        items = texts(9).each_with_index.map { |text, index| [index + 1, text] } << [10, "\xff"]
        run = described_class.embed(items, into: Article, batch: 5)
        expect(run.progress).to include(total: 10, embedded: 9, set_aside: 1, failed: 0, state: :finished)
        expect(run.set_aside).to match([{ key: "10", error: /InvalidInputError: .* not valid UTF-8/ }])
      end

      it "finds the one text in a slice that a model refuses" do
        article(update: :manual)
        fill(12)
        model
        refusing = Class.new(SimpleDelegator) do
          def embed(texts, **options)
            raise Candle::InvalidInputError, "no seven" if texts.any? { |text| text.end_with?(" 7") }

            super
          end
        end
        allow(Candle::EmbeddingModel).to receive(:from_pretrained).and_return(refusing.new(model))
        Candle::ModelRegistry.shared.release
        run = described_class.embed(Article, batch: 12)
        expect(run.progress).to include(embedded: 11, set_aside: 1)
        expect(run.set_aside).to eq([{ key: "8", error: "Candle::InvalidInputError: no seven" }])
      ensure
        Candle::ModelRegistry.shared.release
      end

      it "stops between slices, and continues" do
        article(update: :manual)
        fill(20)
        queue = []
        described_class.backend = collecting(queue)
        run = described_class.embed(Article, batch: 5)
        expect(queue).to eq([[run.id]] * 4)
        perform = Candle::Jobs::Backend::Inline.new
        perform.perform(*queue.shift)
        run.stop
        queue.shift(3).each { |arguments| perform.perform(*arguments) }
        expect(run.progress).to include(embedded: 5, waiting: 15, state: :stopped)
        described_class.find(run.id).continue
        expect(queue.size).to eq(3)
        queue.each { |arguments| perform.perform(*arguments) }
        expect(run.progress).to include(embedded: 20, waiting: 0, state: :finished)
      end

      it "tries a slice again, later each time, and gives it up in the end" do
        article(update: :manual, model: "nobody/nothing")
        fill(4)
        queue = []
        described_class.backend = collecting(queue)
        allow(Candle.logger).to receive(:warn)
        ENV["HF_HUB_OFFLINE"] = "1"
        run = described_class.embed(Article, batch: 4, attempts: 2)
        perform = Candle::Jobs::Backend::Inline.new
        perform.perform(run.id)
        slices = Candle::Jobs::Ledger.slices.where(run_id: run.id)
        expect(slices.first).to have_attributes(state: "waiting", attempts: 1)
        expect(slices.first.free_at - Candle::Jobs::Ledger.now).to be_between(0.5, 1.1)
        perform.perform(run.id)
        expect(slices.first.attempts).to eq(1)
        slices.update_all(free_at: 0)
        perform.perform(run.id)
        expect(run.progress).to include(failed: 4, embedded: 0, state: :finished)
        expect(run.errors.first).to match(/OfflineError/)
        run.continue(failed: true)
        expect(run.progress).to include(failed: 0, waiting: 4, state: :running)
      ensure
        ENV.delete("HF_HUB_OFFLINE")
      end

      it "lets nobody write whose lease has ended" do
        article(update: :manual)
        fill(3)
        described_class.backend = collecting([])
        run = described_class.embed(Article, batch: 3, lease: 0.01)
        ledger = Candle::Jobs::Ledger.find(run.id)
        slow = ledger.take
        sleep 0.05
        other = ledger.take
        expect(other.id).to eq(slow.id)
        expect(Candle::Jobs::Slice.new(ledger, slow).perform).to be(false)
        expect(Article.where.not(embedding: nil)).to be_empty
        expect(Candle::Jobs::Slice.new(ledger, other).perform).to be(true)
        expect(run.progress).to include(embedded: 3)
      end

      it "keeps a slice that takes longer than its lease" do
        article(update: :manual)
        fill(6)
        stub_const("Candle::Jobs::Slice::PART", 2)
        described_class.backend = collecting([])
        run = described_class.embed(Article, batch: 6, lease: 0.2)
        ledger = Candle::Jobs::Ledger.find(run.id)
        taken = ledger.take
        embedding = Article.candle_embedding
        allow(embedding).to(receive(:vectors).and_wrap_original do |original, *given|
          sleep 0.12
          original.call(*given)
        end)
        expect(Candle::Jobs::Slice.new(ledger, taken).perform).to be(true)
        expect(run.progress).to include(embedded: 6)
      end

      it "forgets a run on demand, and what its slices were of when they are done" do
        article(update: :manual)
        fill(4)
        run = described_class.embed(Article, batch: 2)
        expect(Candle::Jobs::Ledger.slices.distinct.pluck(:payload)).to eq(["[]"])
        run.delete
        expect(Candle::Jobs::Ledger.slices.count).to eq(0)
        expect { described_class.find(run.id) }.to raise_error(ArgumentError)
        expect(Candle::Jobs::Backend::Inline.new.perform(run.id)).to be_nil
      end

      it "does not overwrite the vector of a text that was changed meanwhile" do
        article(update: :manual)
        fill(2)
        described_class.backend = collecting([])
        run = described_class.embed(Article, batch: 2)
        ledger = Candle::Jobs::Ledger.find(run.id)
        slice = Candle::Jobs::Slice.new(ledger, ledger.take)
        registry = Candle::ModelRegistry.shared
        allow(registry).to receive(:use).and_wrap_original do |original, *arguments, **options, &block|
          original.call(*arguments, **options, &block).tap do
            RSpec::Mocks.space.proxy_for(registry).reset
            Article.first.update!(content: "newer")
            Article.first.update_embedding
          end
        end
        slice.perform
        expect(run.progress).to include(embedded: 1, skipped: 1)
        expect(Article.first.embedding).to be_near(model.embed("newer"), 1e-5)
      end

      it "says what is missing" do
        article(update: :manual)
        expect { described_class.embed(["fox"]) }.to raise_error(ArgumentError, /needs into:/)
        expect { described_class.embed(3) }.to raise_error(ArgumentError, /relation or an Enumerable/)
        expect { described_class.embed(Class.new(ActiveRecord::Base) { self.table_name = "articles" }) }
          .to raise_error(ArgumentError, /has no has_embedding/)
        expect { described_class.embed(Article, batch: 0) }.to raise_error(ArgumentError, /batch must be a positive/)
        expect { described_class.embed(Article, seconds: 0) }.to raise_error(ArgumentError, /seconds must be/)
        expect { described_class.backend = :carrier_pigeon }.to raise_error(ArgumentError, /backend must be one of/)
        expect { described_class.find(10**6) }.to raise_error(ArgumentError, /no run 1000000/)
      end
    end
  end

  it "brings a record up to date by a job of Active Job" do
    connect(:postgresql)
    described_class.backend = :active_job
    ActiveJob::Base.queue_adapter = :test
    ActiveJob::Base.logger = nil
    article(update: :later)
    record = Article.create!(content: "the quick fox")
    expect(record.reload.embedding).to be_nil
    jobs = ActiveJob::Base.queue_adapter.enqueued_jobs
    expect(jobs.map { |job| job.values_at(:job, :args) }).to eq([[Candle::Jobs::ActiveJobJob, ["Article", record.id]]])
    ActiveJob::Base.execute(jobs.first.except(:job, :args, :queue))
    expect(record.reload).to be_embedding_current

    ActiveJob::Base.queue_adapter = :inline
    fill(10)
    expect(described_class.embed(Article, batch: 3).progress).to include(embedded: 10, skipped: 1, state: :finished)
  end
end

# frozen_string_literal: true

require "json"
require "open3"
require "tmpdir"

# Whatever objects, processes and workers know of a row: afterwards its vector is that of its text.
RSpec.describe "has_embedding with stale records" do
  let(:model) { @model ||= Candle::EmbeddingModel.from_pretrained(Databases::MODEL) }

  def two_sources
    article
    define_article { has_embedding(:content, :language, model: Databases::MODEL, dimensions: 32) }
  end

  def expect_all_current
    Article.find_each do |record|
      expect(record).to be_embedding_current, record.attributes.except("embedding").inspect
      text = [record.content, record.try(:language)].compact.join("\n\n")
      expect(record.embedding).to be_near(model.embed(text), 1e-5)
    end
  end

  def slice_of(run)
    ledger = Candle::Jobs::Ledger.find(run.id)
    Candle::Jobs::Slice.new(ledger, ledger.take)
  end

  # Runs the block when the slice has made its vectors and not yet written them.
  def after_embedding
    done = false
    allow(Article.candle_embedding).to(receive(:vectors).and_wrap_original do |original, *given|
      original.call(*given).tap do
        yield unless done
        done = true
      end
    end)
  end

  def collect_jobs
    Candle::Jobs::Schema.drop(ActiveRecord::Base.connection)
    Candle::Jobs.backend = Class.new { def enqueue(*, **) = nil }.new
  end

  after { Candle::Jobs.backend = nil }

  %i[postgresql sqlite].each do |database|
    context "with #{database}" do
      before { connect(database) }
      after { ActiveRecord::Base.connection_pool.disconnect! }

      it "embeds what the object wrote that wrote last" do
        article
        first = Article.create!(content: "the quick fox")
        second = Article.find(first.id)
        second.update!(content: "hello world")
        first.update!(content: "the lazy dog")
        expect(Article.first.content).to eq("the lazy dog")
        expect_all_current
        expect(first.embedding).to be_near(model.embed("the lazy dog"), 1e-5)
        second.reload.update!(content: "one two three")
        first.content_will_change!
        first.save!
        expect_all_current
      end

      it "embeds the row's text where two objects wrote parts of it" do
        two_sources
        first = Article.create!(content: "the quick fox", language: "one")
        second = Article.find(first.id)
        second.update!(language: "two")
        first.update!(content: "the lazy dog")
        expect(Article.first.attributes).to include("content" => "the lazy dog", "language" => "two")
        expect_all_current
        expect(first).not_to be_embedding_current
      end

      it "embeds the text of an object that was loaded without its digest" do
        article
        Article.create!(content: "the quick fox")
        Article.select(:id, :content).first.update!(content: "hello world")
        expect_all_current
      end

      it "embeds what is stored, not what an object has not saved" do
        article(update: :manual)
        record = Article.create!(content: "the quick fox")
        record.content = "never saved"
        record.update_embedding
        expect_all_current
      end

      it "keeps rows right that several processes write" do
        Dir.mktmpdir do |folder|
          configuration = Databases.postgresql
          configuration = { adapter: "sqlite3", database: File.join(folder, "db"), timeout: 30_000 } if
            database == :sqlite
          ActiveRecord::Base.establish_connection(configuration)
          two_sources
          4.times { |index| Article.create!(content: "text #{index}", language: "en") }
          environment = { "SPEC_DATABASE" => JSON.generate(configuration), "SPEC_MODEL" => Databases::MODEL }
          command = [RbConfig.ruby, File.join(__dir__, "support/writer.rb")]
          writers = Array.new(3) { |seed| Open3.popen2e(environment, *command, seed.to_s) }
          # All of them have loaded the rows before one of them writes.
          expect(writers.map { |_, output, _| output.gets }).to all(eq("ready\n"))
          writers.each { |input, _, _| input.puts }
          expect(writers.map { |_, output, process| [process.value.to_i, output.read] }).to all(eq([0, ""]))
          expect_all_current
        end
      end

      it "embeds texts again that changed while their slice was computed" do
        article(update: :manual)
        collect_jobs
        %w[fox dog house apple].each { |text| Article.create!(content: text) }
        run = Candle::Jobs.embed(Article, batch: 4)
        slice = slice_of(run)
        after_embedding do
          Article.find(1).update_column(:content, "another fox")
          Article.find(2).update!(content: "another dog")
          Article.find(3).update_column(:content, nil)
          Article.find(4).delete
        end
        expect(slice.perform).to be(true)
        expect(run.progress).to include(embedded: 2, skipped: 2, set_aside: 0)
        expect(Article.find(3)).to have_attributes(embedding: nil, embedding_digest: nil)
        Article.find(3).delete
        expect_all_current
      end

      it "sets a text aside that became one which can't be embedded" do
        article(update: :manual)
        collect_jobs
        %w[fox dog].each { |text| Article.create!(content: text) }
        run = Candle::Jobs.embed(Article, batch: 2)
        slice = slice_of(run)
        after_embedding do
          Article.first.update_column(:content, "odd")
          allow(Article.candle_embedding).to receive(:vectors).and_raise(Candle::InvalidInputError, "odd")
        end
        expect(slice.perform).to be(true)
        expect(run.progress).to include(embedded: 1, set_aside: 1)
        expect(Article.first).not_to be_embedding_current
      end

      it "lets a lease end inside a slice, and the next worker embed what has become of the texts" do
        article(update: :manual)
        collect_jobs
        %w[fox dog].each { |text| Article.create!(content: text) }
        run = Candle::Jobs.embed(Article, batch: 2, lease: 0.05)
        slow = slice_of(run)
        other = nil
        after_embedding do
          sleep 0.1
          other = slice_of(run)
          Article.first.update_column(:content, "another fox")
        end
        expect(slow.perform).to be(false)
        expect(Article.where.not(embedding_digest: nil)).to be_empty
        expect(other.perform).to be(true)
        expect(run.progress).to include(embedded: 2, state: :running)
        expect_all_current
      end

      it "gives a slice of a worker that stops to the next one at once" do
        article(update: :manual)
        collect_jobs
        Article.create!(content: "fox")
        ledger = Candle::Jobs::Ledger.find(Candle::Jobs.embed(Article, lease: 60).id)
        taken = ledger.take
        expect(ledger.take).to be_nil
        shutdown = Class.new(Exception) # rubocop:disable Lint/InheritException -- as Sidekiq's is
        allow(Candle::Jobs::Slice).to receive(:new).and_raise(shutdown)
        allow(ledger).to receive(:take).and_return(taken)
        expect { Candle::Jobs::Work.advance(ledger) }.to raise_error(shutdown)
        allow(ledger).to receive(:take).and_call_original
        expect(ledger.take).to have_attributes(id: taken.id, attempts: 1)
      end
    end
  end
end

# frozen_string_literal: true

RSpec.describe "has_embedding" do
  let(:model) { @model ||= Candle::EmbeddingModel.from_pretrained(Databases::MODEL) }

  def exact(query, texts = Databases::TEXTS)
    model.search(query, texts, top_k: nil).map { |hit| hit[:text] }
  end

  %i[postgresql sqlite].each do |database|
    context "with #{database}" do
      before { connect(database) }
      after { ActiveRecord::Base.connection_pool.disconnect! }

      it "stores the vector of a text with its digest, and gives it back" do
        article
        record = Article.create!(content: "the quick fox")
        expect(record.embedding).to be_near(model.embed("the quick fox"), 1e-6)
        found = Article.find(record.id)
        expect(found.embedding).to be_near(model.embed("the quick fox"), 1e-6)
        expect(found.embedding_digest).to match(/\A\h{64}\z/)
        expect(found).to be_embedding_current
        expect(found).not_to be_changed
      end

      it "follows the text, and computes nothing while it stays" do
        article
        record = Article.create!(content: "the quick fox")
        digest = record.embedding_digest
        sent = statements { record.update!(language: "en") }
        expect(sent.grep(/fresh/)).to be_empty
        record.update!(content: "hello world")
        expect(record.reload.embedding).to be_near(model.embed("hello world"), 1e-6)
        expect(record.embedding_digest).not_to eq(digest)
        record.update!(content: " ")
        expect(record.reload).to have_attributes(embedding: nil, embedding_digest: nil)
      end

      it "notices another model, revision, dimension or prompt by the digest" do
        article
        record = Article.create!(content: "the quick fox")
        others = [{ model: TinyModels.path("bert") }, { revision: "v2" }, { dimensions: 16 }, { prompt: "query: " }]
        others.each do |other|
          define_article { has_embedding(:content, **{ model: Databases::MODEL, dimensions: 32 }.merge(other)) }
          expect(Article.find(record.id)).not_to be_embedding_current
        end
      end

      it "finds the nearest in one statement, without loading their vectors" do
        article
        Databases::TEXTS.each { |text| Article.create!(content: text) }
        found = nil
        sent = statements { found = Article.nearest("the lazy dog", limit: 3).to_a }
        expect(found.map(&:content)).to eq(exact("the lazy dog").first(3))
        expect(found.first.neighbor_distance).to be_within(1e-5).of(0)
        expect(sent.grep(/FROM "articles"/).size).to eq(1)
        expect(found.first).not_to have_attribute(:embedding)
        expect(found.first.embedding).to be_near(model.embed("the lazy dog"), 1e-6)
      end

      it "searches what relations and conditions leave" do
        article
        Databases::TEXTS.zip(%w[en de].cycle) { |text, language| Article.create!(content: text, language: language) }
        expected = exact("fox", Databases::TEXTS.values_at(1, 3, 5))
        expect(Article.where(language: "de").nearest("fox", limit: 5).map(&:content)).to eq(expected)
        expect(Article.nearest("fox", limit: 5, where: { language: "de" }).map(&:content)).to eq(expected)
        expect(Article.nearest("fox", limit: 2).where(language: "de").pluck(:content)).to eq(expected.first(2))
        expect(Article.where(language: "fr").nearest("fox")).to be_empty
      end

      it "takes vectors and records as queries" do
        article
        records = Databases::TEXTS.map { |text| Article.create!(content: text) }
        vector = model.embed("hello world")
        [vector, model.embed("hello world", as: :packed), model.embed("hello world", as: :tensor)].each do |query|
          expect(Article.nearest(query, limit: 1).first).to eq(records[1])
        end
        expect(Article.nearest(records[1], limit: 1).first.content).to eq(exact("hello world")[1])
        expect(Article.nearest("fox", distance: :euclidean, limit: 2).map(&:content)).to eq(exact("fox").first(2))
      end

      it "orders candidates by a reranker" do
        article
        Databases::TEXTS.each { |text| Article.create!(content: text) }
        reranker = Candle::Reranker.from_pretrained(TinyModels.path("bert-reranker"))
        candidates = exact("fox").first(4)
        expected = reranker.rerank("fox", candidates, top_k: 2)
        found = Article.nearest("fox", limit: 2, candidates: 4, rerank: reranker)
        expect(found.map(&:content)).to eq(expected.map { |hit| hit[:text] })
        expect(found.map(&:rerank_score)).to be_near(expected.map { |hit| hit[:score] }, 1e-6)
        by_name = Article.nearest("fox", limit: 2, candidates: 4, rerank: TinyModels.path("bert-reranker"))
        expect(by_name).to eq(found)
      end

      it "finds candidates by their signs and scores them again by the vectors" do
        article(bits: true)
        Databases::TEXTS.each { |text| Article.create!(content: text) }
        found = nil
        sent = statements { found = Article.nearest("the lazy dog", limit: 2, candidates: 6).to_a }
        expect(found.map(&:content)).to eq(exact("the lazy dog").first(2))
        expect(sent.grep(/FROM/).size).to eq(1)
        bits = Article.nearest("the lazy dog", limit: 1, candidates: 1).first
        expect(bits.content).to eq("the lazy dog")
      end

      it "keeps signed bytes and bits, and scores them again" do
        article(type: :int8, bits: true)
        record = Article.create!(content: "the quick fox")
        bytes = model.embed("the quick fox", as: :int8).unpack("c*")
        expect(record.reload.embedding).to be_near(bytes, 1)
        Databases::TEXTS.drop(1).each { |text| Article.create!(content: text) }
        found = Article.nearest("the lazy dog", limit: 3, candidates: 6)
        expect(found.map(&:content)).to eq(exact("the lazy dog").first(3))

        article(type: :bit)
        Databases::TEXTS.each { |text| Article.create!(content: text) }
        expect(Article.first.embedding).to eq(model.embed("the quick fox", as: :binary).unpack1("B*"))
        found = Article.nearest("the lazy dog", limit: 2)
        expect(found.first.content).to eq("the lazy dog")
        expect(found.first.neighbor_distance).to be < found.last.neighbor_distance
      end

      it "computes later or only on demand where told to" do
        article(update: :manual)
        record = Article.create!(content: "the quick fox")
        expect(record.embedding).to be_nil
        expect(record.update_embedding).to be(true)
        expect(record.update_embedding).to be(false)
        expect(record.reload.embedding).to be_near(model.embed("the quick fox"), 1e-6)
      end

      it "says what is wrong" do
        article
        expect { Article.nearest("fox", column: :other) }.to raise_error(ArgumentError, /with column :other: it has/)
        expect { Article.nearest("fox", limit: 0) }.to raise_error(ArgumentError, /limit must be a positive Integer/)
        expect { Article.nearest("fox", distance: :far) }.to raise_error(ArgumentError, /distance must be one of/)
        expect { Article.has_embedding(:content) }.to raise_error(ArgumentError, /needs model:/)
        expect { Article.has_embedding(:content, model: "x", colour: 1) }.to raise_error(ArgumentError, /colour/)
        migrate { remove_column(:articles, :embedding) }
        define_article { has_embedding(:content, model: Databases::MODEL) }
        expect { Article.create!(content: "fox") }.to raise_error(Candle::Error, /has no column embedding: add it with/)
      end
    end
  end

  context "with pgvector" do
    before { connect(:postgresql) }
    after { ActiveRecord::Base.connection_pool.disconnect! }

    it "sends vectors as bytes, never as printed numbers" do
      article(bits: true)
      raw = ActiveRecord::Base.connection.raw_connection
      sent = []
      %i[exec_params exec_prepared].each do |name|
        allow(raw).to(receive(name).and_wrap_original do |original, *given, &block|
          sent << given
          original.call(*given, &block)
        end)
      end
      Article.create!(content: "the quick fox")
      Article.nearest("the lazy dog").to_a
      packed = model.embed("the lazy dog", as: :packed)
      bound = sent.flat_map { |_, binds| binds }
      expect(bound.grep(Hash).map { |bind| bind[:value].bytesize }).to include(4 + (4 * 32), 4 + 4)
      expect(bound).to include(value: [32, 0].pack("nn") + packed.unpack("e*").pack("g*"), format: 1)
      expect(sent.flatten.grep(String).grep(/\d\.\d+,/)).to be_empty
    end

    it "keeps half-precision vectors" do
      article(type: :halfvec)
      Databases::TEXTS.each { |text| Article.create!(content: text) }
      expect(Article.first.embedding).to be_near(model.embed("the quick fox"), 1e-3)
      expect(Article.nearest("the lazy dog", limit: 3).map(&:content)).to eq(exact("the lazy dog").first(3))
    end

    it "searches by HNSW and IVFFlat indexes that migrations add and take away" do
      article(bits: true)
      change = proc do
        add_embedding_index(:articles, m: 8, ef_construction: 32)
        add_embedding_index(:articles, :embedding_bits, type: :bit)
        add_embedding_index(:articles, using: :ivfflat, distance: :euclidean, lists: 2)
      end
      migrate(&change)
      Databases::TEXTS.each { |text| Article.create!(content: text) }
      plan = lambda do |**options|
        Article.transaction do
          Article.connection.execute("SET LOCAL enable_seqscan = off")
          Article.nearest("fox", limit: 2, **options).explain
        end
      end
      expect(plan.call(candidates: 4)).to include("index_articles_on_embedding_bits_hnsw")
      define_article { has_embedding(:content, model: Databases::MODEL, dimensions: 32) }
      expect(plan.call).to include("Index Scan using index_articles_on_embedding_hnsw")
      expect(plan.call(distance: :euclidean)).to include("index_articles_on_embedding_ivfflat")
      found = Article.with_search_settings(ef_search: 100, probes: 2) { Article.nearest("the lazy dog", limit: 2).to_a }
      expect(found.map(&:content)).to eq(exact("the lazy dog").first(2))
      migrate(:down, &change)
      expect(Article.connection.indexes(:articles).map(&:name)).to eq(["index_articles_on_address"])
    end

    it "dumps its columns into schema files, and makes them by t.vector" do
      article
      schema = StringIO.new
      ActiveRecord::SchemaDumper.dump(ActiveRecord::Base.connection, schema)
      expect(schema.string).to include('t.vector "embedding", limit: 32')
      migrate do
        create_table(:others, force: true) { |table| table.vector(:whole, limit: 3) && table.halfvec(:half, limit: 3) }
      end
      types = ActiveRecord::Base.connection.columns(:others).map(&:sql_type)
      expect(types).to include("vector(3)", "halfvec(3)")
      migrate { drop_table(:others) }
    end

    it "leaves the column's type to the neighbor gem, and writes bytes all the same" do
      stub_const("Neighbor", Module.new)
      article
      printed = Class.new(ActiveModel::Type::Value) do
        def deserialize(text) = text && JSON.parse(text)
        def serialize(vector) = vector && JSON.generate(vector)
      end
      Article.attribute(:embedding, printed.new)
      record = nil
      expect(statement_binds { record = Article.create!(content: "the quick fox") }.grep(/\A\[/)).to be_empty
      expect(record.reload.embedding).to be_near(model.embed("the quick fox"), 1e-6)
      expect(Article.nearest("the quick fox", limit: 1).first).to eq(record)
    end

    it "says when a connection can't bind parameters" do
      article
      ActiveRecord::Base.establish_connection(Databases.postgresql.merge(prepared_statements: false))
      Article.reset_column_information
      expect { Article.nearest("fox") }.to raise_error(Candle::Error, /remove prepared_statements: false/)
    end
  end

  it "says that SQLite has no half-precision vectors" do
    connect(:sqlite)
    article(type: :halfvec)
    expect { Article.create!(content: "fox") }.to raise_error(ArgumentError, /use type: :vector, or :int8/)
  end

  context "with SQLite without sqlite-vec" do
    before do
      ActiveRecord::Base.establish_connection(adapter: "sqlite3", database: ":memory:")
      stub_const("Candle::ActiveRecord::Scan::PAGE", 2)
    end

    after { ActiveRecord::Base.connection_pool.disconnect! }

    def fill
      Databases::TEXTS.zip(%w[en de].cycle) { |text, language| Article.create!(content: text, language: language) }
    end

    it "compares all vectors here, and finds the nearest" do
      article
      fill
      found = Article.nearest("the lazy dog", limit: 3)
      expect(found.map(&:content)).to eq(exact("the lazy dog").first(3))
      scores = model.search("the lazy dog", Databases::TEXTS, top_k: 3).map { |hit| 1 - hit[:score] }
      expect(found.map(&:neighbor_distance)).to be_near(scores, 1e-5)
      expect(found.first).not_to have_attribute(:embedding)
      expect(found.first).not_to be_changed
      expect(Article.nearest("fox", limit: 50).size).to eq(6)
    end

    it "measures other distances" do
      article
      fill
      query = model.embed("fox")
      straight = Databases::TEXTS.to_h do |text|
        [text, Math.sqrt(model.embed(text).zip(query).sum { |one, other| (one - other)**2 })]
      end
      near = Article.nearest("fox", limit: 6, distance: :euclidean)
      expect(near.map(&:content)).to eq(straight.sort_by(&:last).map(&:first))
      expect(near.map(&:neighbor_distance)).to be_near(straight.values.sort, 1e-5)
      expect(Article.nearest("fox", limit: 6, distance: :inner_product).map(&:content)).to eq(exact("fox"))
    end

    it "searches what relations leave, for texts, vectors, records and rerankers" do
      article
      fill
      expected = exact("fox", Databases::TEXTS.values_at(1, 3, 5))
      expect(Article.where(language: "de").order(:id).limit(1).nearest("fox", limit: 5).map(&:content)).to eq(expected)
      expect(Article.nearest(Article.first, limit: 1).first.content).to eq(exact("the quick fox")[1])
      expect(Article.select(:id, :language).nearest("fox", limit: 1).first).not_to have_attribute(:content)
      reranked = Article.nearest("fox", limit: 2, candidates: 4, rerank: TinyModels.path("bert-reranker"))
      expect(reranked.map(&:rerank_score)).to all(be_a(Float))
      expect(Article.where(language: "fr").nearest("fox")).to eq([])
    end

    it "compares signed bytes and signs" do
      article(type: :int8, bits: true)
      fill
      expect(Article.nearest("the lazy dog", limit: 3).map(&:content)).to eq(exact("the lazy dog").first(3))
      article(type: :bit)
      fill
      found = Article.nearest("the lazy dog", limit: 2)
      expect(found.first.content).to eq("the lazy dog")
      expect(found.first.neighbor_distance).to be < found.last.neighbor_distance
    end

    it "says when there are too many vectors, or others" do
      article
      fill
      before = Candle::ActiveRecord.scan_limit
      Candle::ActiveRecord.scan_limit = 5
      expect { Article.nearest("fox") }.to raise_error(Candle::Error, /more than 5 vectors .* sqlite-vec extension/)
      expect(Article.where(language: "de").nearest("fox").size).to eq(3)
      expect { Candle::ActiveRecord.scan_limit = 0 }.to raise_error(ArgumentError, /scan_limit must be a positive/)
      expect { Article.nearest([1.0, 2.0]) }.to raise_error(Candle::Error, /other dimensions than the query's 2/)
    ensure
      Candle::ActiveRecord.scan_limit = before
    end
  end
end
